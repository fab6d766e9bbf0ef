"""The cost of a search: CPU seconds and seconds of a round, for convolutions of ResNet-50 on a GPU. None is needed.

The searcher is the real child, with two threads. Its candidates are not built: their times are made up. The rates of
`simulated_gpu` follow from the results.

Usage: python -m benchmarks.search_cost [--quick] [--out FILE]
"""

import hashlib
import time
from pathlib import Path
from typing import Any

import onnx
import psutil

from benchmarks.support.machine import arguments, write_result
from fractune_workers.child import Child
from fractune_workers.reader import reader_child

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
TARGET = "cuda:sm_90"
SHARES = {"mps:25": 4.0, "full": 1.0}
"""how much slower each is, made up"""
THREADS = 2
ROUNDS = (8, 8, 8, 16, 32, 64)
_OPERATORS = 2
_INGEST_S, _CALL_S = 200.0, 300.0


def main() -> None:
    args = arguments(__doc__).parse_args()
    rounds, count = (ROUNDS[:1], 1) if args.quick else (ROUNDS, _OPERATORS)
    child = Child("fractune_workers.children.searching.child", [str(THREADS)])
    try:
        found = {operator["name"]: _rounds(child, operator, rounds) for operator in _convolutions()[:count]}
    finally:
        child.stop()
    print(f"{'operator':<36}" + "".join(f"{title:>12}" for title in ("candidates", "CPU s", "s")))
    for name, rows in found.items():
        for row in rows:
            print(f"{name:<36}{row['candidates']:>12}{row['cpu_s']:>12.2f}{row['secs']:>12.2f}")
    write_result("search_cost", args, {"threads": THREADS, "model": MODEL.name, "target": TARGET, "rounds": found})
    rows = [row for each in found.values() for row in each]
    busy = sum(row["cpu_s"] for row in rows) / sum(row["secs"] for row in rows) / THREADS
    print(f"search_cost: {busy:.0%} of {THREADS} threads busy")


def _convolutions() -> list[dict[str, Any]]:
    child = reader_child("fractune_workers.children.compiling.child", model=MODEL)
    answer = child.call("ingest", _INGEST_S, path=str(MODEL), inputs={}, target=TARGET, isa="sm_90")
    child.stop()
    same = {"target": answer["target"], "target_key": answer["target_key"]}
    return [{**operator, **same} for operator in answer["operators"] if "conv2d" in operator["name"]]


def _rounds(child: Child, operator: dict[str, Any], rounds: tuple[int, ...]) -> list[dict[str, float]]:
    """The first rounds of a search. Each learns from the round before it."""
    name = {"workload_hash": operator["workload_hash"], "target_key": operator["target_key"]}
    opening = {"workload": operator["workload"], "target": operator["target"], "seed": 0}
    child.call("open", _CALL_S, **name, **opening, history=[], transferred=[])
    found, results = [], list[tuple[str, str, float]]()
    for count in rounds:
        began_s, cpu_before_s = time.perf_counter(), _cpu_s(child)
        child.call("learn", _CALL_S, **name, results=results, shares=list(SHARES))
        proposed = child.call("propose", _CALL_S, **name, count=count)
        secs, cpu_s = time.perf_counter() - began_s, _cpu_s(child) - cpu_before_s
        found.append({"candidates": len(proposed), "secs": secs, "cpu_s": cpu_s})
        results = [result for item in proposed for result in _made_up(item)]
    return found


def _cpu_s(child: Child) -> float:
    times = psutil.Process(child.pid).cpu_times()
    return float(times.user + times.system)


def _made_up(item: dict[str, str]) -> list[tuple[str, str, float]]:
    secs = 1e-4 + 3e-4 * hashlib.sha256(item["trace"].encode()).digest()[0] / 255
    return [(item["candidate"], share, secs * slower) for share, slower in SHARES.items()]


if __name__ == "__main__":
    main()
