"""How hard a round of search should search: quality against CPU seconds, for several sizes of the evolution.

Every setting searches the same operators with the same number of trials and the same seeds. Real candidates, built by
two warm compilers and measured alone on all cores. Quality is the best time found over the best that any setting found
with any seed, as a geometric mean over operators and seeds.

Usage: python -m benchmarks.evolution [--quick] [--out FILE] [--trials N] [--seeds N] [--operators A,B] [--settings A;B]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from benchmarks.machine import arguments, write_result
from benchmarks.trajectory import geometric_mean
from benchmarks.workshop import CORES, OPERATORS, Workshop, open_workshop
from fractune_core.records import candidate_id
from fractune_server.scheduler.allocation import FIRST_ROUND, round_of
from fractune_workers.children.importing.passes import Operator
from fractune_workers.children.searching.operator_search import Evolution, OperatorSearch
from fractune_workers.children.tvm_api.artifacts import read_workload

SHARE = f"cpu:{CORES}"
ROUND = 64
CHOSEN = "64 x 2"


@dataclass(frozen=True)
class Setting:
    """How a job searches: the size of the evolution, and that of each operator's first rounds."""

    evolution: Evolution
    first: int = FIRST_ROUND
    """candidates; later rounds have half as many as were measured before"""


SETTINGS = {
    "random only": Setting(Evolution(sampled=1 << 30)),
    "64 x 2": Setting(Evolution(64, 2)),
    "64 x 2, no pressure": Setting(Evolution(64, 2, pressure=1.0)),
    "32 x 2": Setting(Evolution(32, 2)),
    "64 x 1": Setting(Evolution(64, 1)),
    "64 x 2, rounds from 16": Setting(Evolution(64, 2), first=16),
    "64 x 2, rounds of 32": Setting(Evolution(64, 2), first=32),
    "64 x 4": Setting(Evolution(64, 4)),
    "32 x 8": Setting(Evolution(32, 8)),
    "128 x 4": Setting(Evolution(128, 4)),
    "256 x 2": Setting(Evolution(256, 2)),
    "512 x 4 (MetaSchedule)": Setting(Evolution(512, 4)),
}


class Search:
    """One operator's search under way."""

    def __init__(self, operator: Operator, setting: Setting, seed: int, workshop: Workshop) -> None:
        self.operator = operator
        self._setting = setting
        self._workshop = workshop
        self._seed = seed + int(operator.workload_hash[:8], 16)
        workload, target = read_workload(operator.workload_json), tvm.target.Target(json.loads(workshop.target))
        self._search = OperatorSearch(workload, target, self._seed, CORES, setting.evolution)
        self.done = 0
        self.cpu_s = 0.0
        """of searching alone"""
        self.best_s: list[float] = []
        """after each trial"""

    def round(self, trials: int) -> None:
        """The next round, of no more than what is left of `trials`."""
        count = min(trials - self.done, round_of(self.done, ROUND, self._setting.first))
        began = time.process_time()
        items = self._search.propose(count, lambda trace: candidate_id(self.operator.workload_hash, "t", trace))
        self.cpu_s += time.process_time() - began
        times = self._workshop.times(self.operator, [item["trace"] for item in items], self._seed)[SHARE]
        best_s = self.best_s[-1] if self.best_s else math.inf
        for secs in times:
            best_s = min(best_s, secs)
            self.best_s.append(best_s)
        self.done += count
        self.best_s += [best_s] * (self.done - len(self.best_s))  # a space that holds no more
        results = [
            (item["candidate"], "s", secs if secs < math.inf else 0.0) for item, secs in zip(items, times, strict=True)
        ]
        began = time.process_time()
        self._search.learn(results, 1)
        self.cpu_s += time.process_time() - began


def run(
    found: Sequence[Operator], setting: Setting, trials: int, seed: int, workshop: Workshop
) -> dict[str, dict[str, Any]]:
    """One job: the operators take turns. By operator: CPU seconds of search, best times."""
    searches = [Search(operator, setting, seed, workshop) for operator in found]
    while any(search.done < trials for search in searches):
        for search in searches:
            if search.done < trials:
                search.round(trials)
    return {search.operator.name: {"search_cpu_s": search.cpu_s, "best_s": search.best_s} for search in searches}


def summary(found: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """By setting: CPU seconds of search for an operator, and quality after a half and after all of the trials.

    `found`: runs by setting, then by case (operator and seed). Quality is relative to the best time that any setting
    found for the operator, with any seed.
    """
    cases = [(case, each) for runs in found.values() for case, each in runs.items()]
    best: dict[str, float] = {}
    for case, each in cases:
        operator = case.split()[0]
        best[operator] = min(best.get(operator, math.inf), each["best_s"][-1])

    def quality(runs: dict[str, dict[str, Any]], part: float) -> float:
        ratios = [
            each["best_s"][int(len(each["best_s"]) * part) - 1] / best[case.split()[0]] for case, each in runs.items()
        ]
        return geometric_mean(ratios)

    return {
        name: {
            "search_cpu_s": sum(each["search_cpu_s"] for each in runs.values()) / len(runs),
            "half": quality(runs, 0.5),
            "end": quality(runs, 1.0),
        }
        for name, runs in found.items()
    }


def main() -> None:
    args = _parse()
    settings = {name: each for name, each in SETTINGS.items() if args.settings is None or name in args.settings}
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in settings}
    with open_workshop([SHARE]) as workshop:
        chosen = workshop.operators(args.operators)
        for seed in range(1, args.seeds + 1):
            for name, setting in settings.items():
                for operator, each in run(chosen, setting, args.trials, seed, workshop).items():
                    found[name][f"{operator} {seed}"] = each
                    _print_run(operator, seed, name, each)
    table = summary(found)
    print(f"{'population x generations':<26}{'search CPU s':>14}{'half-way':>10}{'at the end':>12}")
    for name, row in table.items():
        print(f"{name:<26}{row['search_cpu_s']:>14.1f}{row['half']:>10.3f}{row['end']:>12.3f}")
    write_result("evolution", args, {"trials": args.trials, "seeds": args.seeds, "summary": table, "runs": found})
    print(_verdict(table))


def _print_run(operator: str, seed: int, name: str, told: dict[str, Any]) -> None:
    best_ms = told["best_s"][-1] * 1e3
    print(f"{operator:<28}{seed:>3}  {name:<24}{told['search_cpu_s']:>7.1f} s  {best_ms:.3f} ms", flush=True)


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=64, help="of each operator")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--operators", type=lambda text: text.split(","), default=OPERATORS)
    parser.add_argument("--settings", type=lambda text: text.split(";"), help="only these, separated by semicolons")
    args = parser.parse_args()
    if args.quick:
        args.trials, args.seeds, args.operators = 32, 1, OPERATORS[:1]
        args.settings = args.settings or ["random only", CHOSEN]
    return args


def _verdict(table: dict[str, dict[str, float]]) -> str:
    chosen = table.get(CHOSEN)
    if chosen is None:
        return "evolution: the setting in use was not among those measured"
    others = []
    for name, row in table.items():
        if name == CHOSEN:
            continue
        cost = row["search_cpu_s"] / chosen["search_cpu_s"]
        others.append(f"{name} {row['end'] / chosen['end']:.3f} for {cost:.1f} of the CPU time")
    return f"evolution: best time found, over that of {CHOSEN}: {', '.join(others)}"


if __name__ == "__main__":
    main()
