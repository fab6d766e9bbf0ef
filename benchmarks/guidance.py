"""What should guide a search that serves several shares: equal trials, candidates built once, measured at each share.

    alone       a search for each share, guided by its times: K times the builds, what the others are held against
    geometric   one search, guided by the geometric mean of a candidate's times over the shares
    regret      one search, guided by the mean over the shares of its time over the best at that share so far
    alternating the shares take turns: each round is guided by one of them, with a surrogate of its own

Quality is the best time at a share over that which `alone` found there with the same seed, as a geometric mean over
operators and seeds.

Usage: python -m benchmarks.guidance [--quick] [--out FILE] [--trials N] [--seeds N] [--operators A,B]
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tvm

from benchmarks.machine import arguments, write_result
from benchmarks.trajectory import geometric_mean
from benchmarks.workshop import CORES, OPERATORS, Workshop, open_workshop
from fractune_core.records import candidate_id
from fractune_server.scheduler.allocation import round_of
from fractune_workers.children.importing.passes import Operator
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.artifacts import read_workload

SHARES = ("cpu:1", "cpu:2")
ROUND = 64

Times = Mapping[str, Sequence[float]]
"""by share the seconds of each candidate; infinite for a failure"""


class Way(Protocol):
    """One operator's search."""

    def propose(self, count: int) -> list[dict[str, str]]: ...

    def learn(self, items: list[dict[str, str]], times: Times) -> None: ...


class Joint:
    """One search, guided by one number for each candidate."""

    def __init__(
        self, search: OperatorSearch, shares: Sequence[str], score: Callable[[list[float], list[float]], float]
    ) -> None:
        self._search = search
        self._shares = shares
        self._score = score
        self._best = [math.inf] * len(shares)

    def propose(self, count: int) -> list[dict[str, str]]:
        return self._search.propose(count, _name)

    def learn(self, items: list[dict[str, str]], times: Times) -> None:
        self._best = [min([best, *times[share]]) for best, share in zip(self._best, self._shares, strict=True)]
        by_candidate = zip(*(times[share] for share in self._shares), strict=True)
        scores = [self._score(list(secs), self._best) for secs in by_candidate]
        found = [(item["candidate"], "", _or_failure(score)) for item, score in zip(items, scores, strict=True)]
        self._search.learn(found, 1)


class Alternating:
    """A search for each share. The one whose turn it is proposes; all of them learn what came of it."""

    def __init__(self, searches: Sequence[OperatorSearch]) -> None:
        self._searches = searches
        self._turn = -1

    def propose(self, count: int) -> list[dict[str, str]]:
        self._turn += 1
        return self._searches[self._turn % len(self._searches)].propose(count, _name)

    def learn(self, items: list[dict[str, str]], times: Times) -> None:
        for number, (search, share) in enumerate(zip(self._searches, SHARES, strict=True)):
            if number == self._turn % len(self._searches):
                names = [item["candidate"] for item in items]
                search.learn([(name, "", _or_failure(t)) for name, t in zip(names, times[share], strict=True)], 1)
            else:
                traces = [item["trace"] for item in items]
                search.warm((trace, _or_failure(t)) for trace, t in zip(traces, times[share], strict=True))


class Job:
    """Searches of one kind for all operators."""

    def __init__(self, way: str, seed: int, workshop: Workshop) -> None:
        self._way = way
        self._seed = seed
        self._workshop = workshop

    def way(self, operator: Operator) -> Way:
        if self._way == "alternating":
            return Alternating([self._search(operator) for _ in SHARES])
        search = self._search(operator)
        if self._way == "geometric":
            return Joint(search, SHARES, lambda secs, _: geometric_mean(secs))
        if self._way == "regret":
            return Joint(search, SHARES, lambda secs, best: sum(t / b for t, b in zip(secs, best, strict=True)))
        return Joint(search, [self._way], lambda secs, _: secs[0])

    def run(self, operators: Sequence[Operator], trials: int) -> dict[str, dict[str, float]]:
        """Best seconds by operator and share."""
        ways = {operator.name: self.way(operator) for operator in operators}
        best: dict[str, dict[str, float]] = {operator.name: dict.fromkeys(SHARES, math.inf) for operator in operators}
        done = 0
        while done < trials:
            count = min(trials - done, round_of(done, ROUND))
            for operator in operators:
                items = ways[operator.name].propose(count)
                times = self._workshop.times(operator, [item["trace"] for item in items], self._seed)
                ways[operator.name].learn(items, times)
                for share, secs in times.items():
                    best[operator.name][share] = min([best[operator.name][share], *secs])
            done += count
        return best

    def _search(self, operator: Operator) -> OperatorSearch:
        workload, target = read_workload(operator.workload_json), tvm.target.Target(json.loads(self._workshop.target))
        seed = self._seed + int(operator.workload_hash[:8], 16)
        return OperatorSearch(workload, target, seed, CORES)


def _name(trace: str) -> str:
    return candidate_id("", "", trace)


def _or_failure(secs: float) -> float:
    return secs if math.isfinite(secs) else 0.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=64, help="of each operator")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--operators", type=lambda text: text.split(","), default=OPERATORS)
    args = parser.parse_args()
    if args.quick:
        args.trials, args.seeds, args.operators = 24, 1, OPERATORS[1:2]
    found: dict[str, dict[str, dict[str, float]]] = {}
    with open_workshop(SHARES) as workshop:
        operators = workshop.operators(args.operators)
        for seed in range(1, args.seeds + 1):
            for way in ("alone", "geometric", "regret", "alternating"):
                best = _run(way, seed, workshop, operators, args.trials)
                found.setdefault(way, {}).update({f"{name} {seed}": each for name, each in best.items()})
                print(f"{way}, seed {seed}: {_row(best)}", flush=True)
    table = {way: quality(runs, found["alone"]) for way, runs in found.items() if way != "alone"}
    write_result("guidance", args, {"trials": args.trials, "seeds": args.seeds, "summary": table, "runs": found})
    print(f"{'guided by':<16}" + "".join(f"{share:>10}" for share in SHARES) + f"{'both':>10}")
    for way, row in table.items():
        print(f"{way:<16}" + "".join(f"{ratio:>10.3f}" for ratio in row.values()))
    ratios = ", ".join(f"{way} {row['both']:.3f}" for way, row in table.items())
    print(f"guidance: best time of one search for both shares over that of a search for each: {ratios}")


def _run(
    way: str, seed: int, workshop: Workshop, operators: Sequence[Operator], trials: int
) -> dict[str, dict[str, float]]:
    """Best seconds by operator and share. `alone` is one job for each share, of which only that share's best count."""
    if way != "alone":
        return Job(way, seed, workshop).run(operators, trials)
    jobs = {share: Job(share, seed, workshop).run(operators, trials) for share in SHARES}
    return {operator.name: {share: jobs[share][operator.name][share] for share in SHARES} for operator in operators}


def quality(runs: Mapping[str, Mapping[str, float]], alone: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """By share, and over both: geometric mean over the cases of the best time over that of `alone`."""
    ratios = {share: [secs[share] / alone[case][share] for case, secs in runs.items()] for share in SHARES}
    every = [ratio for each in ratios.values() for ratio in each]
    return {**{share: geometric_mean(each) for share, each in ratios.items()}, "both": geometric_mean(every)}


def _row(best: Mapping[str, Mapping[str, float]]) -> str:
    return "; ".join(" / ".join(f"{secs * 1e3:.3f}" for secs in shares.values()) for shares in best.values()) + " ms"


if __name__ == "__main__":
    main()
