"""Latencies under real CPU limits against those that are predicted from times without one.

A bundle is served by 1 thread, by 2 replicas of 1 thread, and by 2 threads, in a cgroup of its own. First without a
limit, in a loop and after pauses. Then under each limit, in a loop and with Poisson arrivals, which take 30 % and 70 %
of the limit with one thread. The same arrivals are simulated. Needs root and cgroup v1. Without --bundle the model is
tuned without a search (`fractune tune --trials 0`).

Usage: python -m benchmarks.cpu_limits [--quick] [--out FILE] [--model NAME] [--bundle FILE] [--limits M,M]
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.limit_cgroup import limit_cgroup, set_limit
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import find_model
from benchmarks.support.processes import import_path
from fractune_core.cpu_limits import PERIOD_US, threads_text
from fractune_core.host.cpus import throttlings
from fractune_core.host.machine import busy_s
from fractune_core.served import poisson
from fractune_workers.child import Child
from tests.support.measured_limits import Cell, cells, median_errors

BARS = {(1, 1): (0.05, 0.10), (1, 2): (0.05, 0.10), (2, 1): (0.10, 0.15)}
"""median errors of p50 and p99, by threads and replicas"""
_LOADS = (0.3, 0.7)
_PAUSE_S = 0.02
_TIMEOUT_S = 300.0
_ARRIVALS_SEED = 1


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="squeezenet")
    parser.add_argument("--bundle", type=Path, help="a bundle of the model for this machine, such as a tuned one")
    parser.add_argument("--limits", default="500,1000,1500", help="in thousandths of a core (default: %(default)s)")
    args = parser.parse_args()
    limits_m = [int(limit) for limit in args.limits.split(",")][: 1 if args.quick else None]
    requests = 30 if args.quick else 250
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        bundle = args.bundle or _tuned(args.model, Path(folder))
        for threads, replicas in BARS:
            service = {
                "engine": "fractune",
                "model": args.model,
                "cores": os.cpu_count(),
                "threads": threads,
                "replicas": replicas,
            }
            with limit_cgroup("cpu_limits") as cgroup, _child(bundle, threads, replicas) as child:
                child.ensure()
                (cgroup / "cgroup.procs").write_text(str(child.pid))
                run = {**service, **_without_limit(child, threads, requests)}
                one_thread_s = (runs or [run])[0]["free"]["cpu_ms"] / 1e3
                run["cells"] = [
                    cell for limit_m in limits_m for cell in _under(limit_m, cgroup, child, requests, one_thread_s)
                ]
            runs.append(run)
    _report(args, runs)


def _tuned(model: str, folder: Path) -> Path:
    """A bundle with the first candidate of each operator, at one core and at two."""
    print(f"{model}: fractune tune --trials 0 ...", flush=True)
    return ours.tune(find_model(model), "cpu:1,cpu:2", folder / "state", folder, ["--trials", "0"]).bundle


def _without_limit(child: Child, threads: int, requests: int) -> dict[str, Any]:
    free = child.call("serve", _TIMEOUT_S, arrivals_s=[None] * requests)
    paced = child.call("paced", _TIMEOUT_S, requests=requests // 4, pause_s=_PAUSE_S)
    spin_s = paced["pause_cpu_s"] / (threads - 1) if threads > 1 else 0.0
    return {"spin_ms": 1e3 * spin_s, "free": _times(free), "paced": _times(paced)}


def _under(limit_m: int, cgroup: Path, child: Child, requests: int, one_thread_s: float) -> Iterator[dict[str, Any]]:
    """The cells of a limit: in a loop, and at each load."""
    set_limit(cgroup, limit_m)
    yield _cell(cgroup, limit_m, None, lambda: child.call("serve", _TIMEOUT_S, arrivals_s=[None] * requests))
    for load in _LOADS:
        rate_per_s = load * limit_m / 1000 / one_thread_s
        arrivals_s = poisson(rate_per_s, requests, random.Random(_ARRIVALS_SEED))
        yield _cell(cgroup, limit_m, rate_per_s, partial(child.call, "serve", _TIMEOUT_S, arrivals_s=arrivals_s))


def _cell(cgroup: Path, limit_m: int, rate_per_s: float | None, serve: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    (before,) = throttlings([cgroup])
    began, before_s = time.perf_counter(), busy_s()
    found = serve()
    requests = len(found["latencies_s"])
    others_s = busy_s() - before_s - found["cpu_s"] * requests
    (after,) = throttlings([cgroup])
    return {
        "quota_m": limit_m,
        "period_us": PERIOD_US,
        "burst_us": 0,
        "rate_per_s": rate_per_s,
        "requests": requests,
        "per_s": requests / found["elapsed_s"],
        "throttled_periods": after.count - before.count,
        "other_cores": max(0.0, others_s / (time.perf_counter() - began)),
        **_times(found),
    }


def _report(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    found = {key: cells(runs, *key) for key in BARS}
    for kept in found.values():
        _print_cells(kept)
    errors = {key: median_errors(kept) for key, kept in found.items() if kept}
    named = [{"threads": n, "replicas": k, "p50_p99": both, "bars": BARS[n, k]} for (n, k), both in errors.items()]
    data = {"model": args.model, "arrivals_seed": _ARRIVALS_SEED, "errors": named, "runs": runs}
    write_result("cpu_limits", args, data)
    texts = [
        f"{k} x {threads_text(n)} {p50:.1%}, {p99:.1%} (bars {BARS[n, k][0]:.0%}, {BARS[n, k][1]:.0%})"
        for (n, k), (p50, p99) in errors.items()
    ]
    count = sum(len(run["cells"]) for run in runs) - sum(map(len, found.values()))
    left_out = f"{count} disturbed or overloaded cells left out"
    print(f"cpu_limits: median errors of p50 and p99: {'; '.join([*texts, left_out])}")


def _times(found: dict[str, Any]) -> dict[str, float]:
    quantiles = statistics.quantiles(found["latencies_s"], n=100, method="inclusive")
    p50, p90, p99 = (1e3 * quantiles[rank - 1] for rank in (50, 90, 99))
    mean_ms = 1e3 * statistics.fmean(found["latencies_s"])
    return {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "mean_ms": mean_ms, "cpu_ms": 1e3 * found["cpu_s"]}


@contextmanager
def _child(bundle: Path, threads: int, replicas: int) -> Iterator[Child]:
    arguments = [str(bundle), str(threads), str(replicas)]
    child = Child("benchmarks.support.limited_child", arguments, env={"PYTHONPATH": import_path()})
    try:
        yield child
    finally:
        child.stop()


def _print_cells(kept: list[Cell]) -> None:
    for cell in kept:
        load = "loop" if cell.rate_per_s is None else f"{cell.rate_per_s:.1f}/s"
        p50, p99 = cell.errors()
        print(
            f"{cell.replicas} x {threads_text(cell.threads)} {cell.limit.quota_m:>5}m {load:>8}"
            f"{cell.measured['p50_ms']:>8.1f} ms ({p50:+.0%}) p99{cell.measured['p99_ms']:>8.1f} ms ({p99:+.0%})"
        )


if __name__ == "__main__":
    main()
