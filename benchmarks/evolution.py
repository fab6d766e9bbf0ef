"""How hard a round of search should search: quality against CPU seconds, for several sizes of the evolution.

Every setting searches the same operators with the same number of trials and the same seeds: real candidates, built by
two warm compilers and measured alone on all cores. Quality is the best time found over the best that any setting
found, as a geometric mean over operators and seeds. Usage: python -m benchmarks.evolution [--quick] [--out FILE]
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import tvm

from benchmarks.machine import write_result
from tuner_core.records import FIRST_POLICY, candidate_id
from tuner_core.shares import Share
from workers.bench import Batch, Bench
from workers.child import CallFailed, Child, ChildDied, ChildTimeout
from workers.children.artifacts import args_of, read_workload
from workers.children.ingest import load_model
from workers.children.intrinsics import load_cpu_intrinsics
from workers.children.passes import Operator, extract, prepare
from workers.children.searching import Evolution, OperatorSearch, new_cost_model

_BUILD_TIMEOUT_S = 120.0
_CORES = 2
MODEL = files("onnx") / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
SETTINGS = {
    "random only": Evolution(sampled=1 << 30),
    "32 x 2": Evolution(32, 2),
    "64 x 2": Evolution(64, 2),
    "128 x 2": Evolution(128, 2),
    "256 x 2": Evolution(256, 2),
    "512 x 4 (MetaSchedule)": Evolution(512, 4),
}


class Builders:
    """Two warm compilers, each owned by a thread of its own."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._children: list[Child] = []

    def build(self, workload: str, target: str, traces: Sequence[str]) -> list[bytes]:
        """Object files; empty where a build failed."""
        return list(self._pool.map(lambda trace: self._one(workload, target, trace), traces))

    def _one(self, workload: str, target: str, trace: str) -> bytes:
        child = self._child()
        try:
            told = (child.ensure(), workload)
            if getattr(self._local, "told", None) != told:
                child.call("learn_workload", 60.0, workload_hash="w", workload=workload)
                self._local.told = told
            answer = child.call("build", _BUILD_TIMEOUT_S, workload_hash="w", target=target, trace=trace)
        except (CallFailed, ChildTimeout, ChildDied):
            return b""
        return base64.b64decode(answer["object"])

    def _child(self) -> Child:
        if not hasattr(self._local, "child"):
            self._local.child = Child("workers.children.building")
            with self._lock:
                self._children.append(self._local.child)
        found: Child = self._local.child
        return found

    def stop(self) -> None:
        for child in self._children:
            child.kill()
        self._pool.shutdown()


@dataclass(frozen=True)
class Tools:
    target: dict[str, Any]
    builders: Builders
    bench: Bench


def operators(names: Sequence[str], target: Any) -> list[Operator]:
    """The model's operators of these names."""
    found = extract(prepare(load_model(Path(str(MODEL))), target), target)
    return [operator for operator in found if operator.name in names]


def run(
    operator: Operator, evolution: Evolution, trials: int, round_size: int, seed: int, tools: Tools
) -> dict[str, Any]:
    """One search: CPU seconds of searching, and the best time in seconds after each round."""
    workload = read_workload(operator.workload_json)
    target = tvm.target.Target(tools.target)
    search = OperatorSearch(workload, target, new_cost_model(seed, _CORES), seed, _CORES, evolution)
    args_info = args_of(workload)
    search_cpu_s, search_s, best_s = 0.0, 0.0, math.inf
    curve: list[float] = []
    while len(curve) * round_size < trials:
        cpu, wall = time.process_time(), time.perf_counter()
        items = search.propose(round_size, round_size, lambda trace: candidate_id(operator.workload_hash, "t", trace))
        search_cpu_s, search_s = search_cpu_s + time.process_time() - cpu, search_s + time.perf_counter() - wall
        codes = tools.builders.build(
            operator.workload_json, json.dumps(tools.target), [item["trace"] for item in items]
        )
        built = {item["candidate"]: code for item, code in zip(items, codes, strict=True) if code}
        times = {
            name: found.median_s
            for name, found in tools.bench.timed(Batch(args_info, seed, built), FIRST_POLICY).items()
        }
        best_s = min([best_s, *times.values()])
        curve.append(best_s)
        results = [(item["candidate"], "s", times.get(item["candidate"], math.inf)) for item in items]
        cpu, wall = time.process_time(), time.perf_counter()
        search.learn([(name, share, secs if secs < math.inf else 0.0) for name, share, secs in results], 1)
        search_cpu_s, search_s = search_cpu_s + time.process_time() - cpu, search_s + time.perf_counter() - wall
    return {"search_cpu_s": search_cpu_s, "search_s": search_s, "best_s": curve}


def summary(found: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """By setting: CPU seconds of search a trial's worth, and quality after a half and after all of the trials.

    `found`: runs by setting, then by case (operator and seed).
    """
    cases = {case for runs in found.values() for case in runs}
    best = {case: min(runs[case]["best_s"][-1] for runs in found.values()) for case in cases}

    def quality(runs: dict[str, dict[str, Any]], at: int) -> float:
        return math.exp(sum(math.log(runs[case]["best_s"][at] / best[case]) for case in cases) / len(cases))

    return {
        name: {
            "search_cpu_s": sum(each["search_cpu_s"] for each in runs.values()) / len(runs),
            "search_s": sum(each["search_s"] for each in runs.values()) / len(runs),
            "half": quality(runs, len(next(iter(runs.values()))["best_s"]) // 2 - 1),
            "end": quality(runs, -1),
        }
        for name, runs in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--trials", type=int, default=128, help="of one search")
    parser.add_argument("--round", type=int, default=32, help="candidates a round")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--operators", default="fused_conv2d3_add2_relu2,fused_conv2d11_add6_relu6,fused_conv2d10_add6_relu6"
    )
    parser.add_argument("--settings", help="only those whose name contains this")
    parser.add_argument("--out", type=Path, help="write the JSON here")
    args = parser.parse_args()
    names = args.operators.split(",")[: 1 if args.quick else None]
    trials, round_size, seeds = (32, 16, 1) if args.quick else (args.trials, args.round, args.seeds)
    settings = {name: each for name, each in SETTINGS.items() if (args.settings or "") in name}
    load_cpu_intrinsics()
    bench = Bench(Share.parse(f"cpu:{_CORES}"), range(_CORES))
    bench.greet()
    target = {**json.loads(bench.hello["target"]), "num-cores": _CORES}
    tools = Tools(target, Builders(_CORES), bench)
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in settings}
    try:
        for operator in operators(names, tvm.target.Target(target)):
            for seed in range(1, seeds + 1):
                for name, evolution in settings.items():
                    result = run(operator, evolution, trials, round_size, seed, tools)
                    found[name][f"{operator.name} {seed}"] = result
                    print(
                        f"{operator.name:<28}{seed:>3}  {name:<24}{result['search_cpu_s']:>7.1f} s  "
                        f"{result['best_s'][-1] * 1e3:.3f} ms",
                        flush=True,
                    )
    finally:
        tools.builders.stop()
        bench.stop()
    table = summary(found)
    print(f"{'population x generations':<26}{'search CPU s':>14}{'half-way':>10}{'at the end':>12}")
    for name, row in table.items():
        print(f"{name:<26}{row['search_cpu_s']:>14.1f}{row['half']:>10.3f}{row['end']:>12.3f}")
    write_result("evolution", args.out, {"trials": trials, "round": round_size, "summary": table, "runs": found})
    stock, chosen = table.get("512 x 4 (MetaSchedule)"), table.get("128 x 2")
    if stock and chosen:
        print(
            f"evolution: 128 x 2 costs {chosen['search_cpu_s'] / stock['search_cpu_s']:.2f} of MetaSchedule's CPU time "
            f"and ends at {chosen['end'] / stock['end']:.3f} of its best time"
        )


if __name__ == "__main__":
    main()
