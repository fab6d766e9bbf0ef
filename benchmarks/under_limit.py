"""Models served under real CPU limits: as fractune chooses, by whole cores rounded down, and by ONNX Runtime.

Each contender is a process in a cgroup of its own with the limit. They take turns, one block of requests at a time, in
a loop and with Poisson arrivals: the rate takes 30 % of the limit with one thread of fractune. All get the same
arrivals. ONNX Runtime runs with its defaults, and with 1 thread and one for each CPU that do not spin: the better of
both counts. Without a limit, two threads also answer requests that come after pauses. Needs root and cgroup v1. Models
are tuned without a search (`fractune tune --trials 0`).

Usage: python -m benchmarks.under_limit [--quick] [--out FILE] [--models A,B] [--limits M,M]
"""

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.limit_cgroup import limit_cgroup, set_limit
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from benchmarks.support.processes import import_path
from fractune_core.served import LOAD, poisson
from fractune_workers.child import Child

MODELS = "squeezenet,transformer"
CHOSEN, THROUGHPUT, POOL, ROUNDED = "load", "load throughput", "pool", "cores 1"
DEFAULTS = "onnx"
_CPUS = len(os.sched_getaffinity(0))
SETTINGS = tuple(f"onnx {threads}" for threads in dict.fromkeys((1, _CPUS)))
"""those that `fractune fit` prints for ONNX Runtime are among them"""
WAYS = (CHOSEN, THROUGHPUT, POOL, ROUNDED, DEFAULTS, *SETTINGS)
_ROUNDS, _REQUESTS = 5, 120
"""turns of each contender, and its requests in each"""
_PAUSE_S = 0.02
_TIMEOUT_S = 600.0
_SEED = 1


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default=MODELS, help="(default: %(default)s)")
    parser.add_argument("--limits", default="500,1500", help="in thousandths of a core (default: %(default)s)")
    args = parser.parse_args()
    rounds, requests = (1, 20) if args.quick else (_ROUNDS, _REQUESTS)
    limits_m = [int(each) for each in args.limits.split(",")]
    found = []
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        for name in args.models.split(",")[: 1 if args.quick else None]:
            model = find_model(name)
            print(f"{name}: fractune tune --trials 0 ...", flush=True)
            place = Path(folder)
            bundle = ours.tune(model, "cpu:1,cpu:2", place / "state", place, ["--trials", "0"]).bundle
            for limit_m in limits_m:
                found.append(_under(limit_m, model, bundle, rounds, requests))
                _print(found[-1])
            found.append({"model": name, "limit_m": None, "pauses": _pauses(model, bundle, requests)})
            _print_pauses(found[-1])
    _report(args, found)


def _under(limit_m: int, model: Model, bundle: Path, rounds: int, requests: int) -> dict[str, Any]:
    """Of each contender: requests a second in a loop, latencies at 30 % load, and what it chose."""
    with ExitStack() as stack:
        children = {way: stack.enter_context(_contender(way, model, bundle, limit_m)) for way in WAYS}
        one_thread_s = children[ROUNDED].call("serve", _TIMEOUT_S, arrivals_s=[None] * requests)["cpu_s"]
        rate_per_s = LOAD * min(limit_m, 1000 * _CPUS) / 1000 / one_thread_s
        loops: dict[str, list[float]] = {way: [] for way in WAYS}
        latencies_s: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            arrivals_s = poisson(rate_per_s, requests, random.Random(_SEED + turn))
            for way, child in children.items():
                loop = child.call("serve", _TIMEOUT_S, arrivals_s=[None] * requests)
                loops[way].append(requests / loop["elapsed_s"])
                latencies_s[way] += child.call("serve", _TIMEOUT_S, arrivals_s=arrivals_s)["latencies_s"]
        chosen = {way: child.call("chosen", _TIMEOUT_S) for way, child in children.items()}
    ways = {way: {"chosen": chosen[way], "loop_per_s": loops[way], **_percentiles(latencies_s[way])} for way in WAYS}
    return {"model": model.name, "limit_m": limit_m, "rate_per_s": rate_per_s, "ways": ways}


def _pauses(model: Model, bundle: Path, requests: int) -> dict[str, Any]:
    """Medians of two threads without a limit, in a loop and after pauses of 20 ms."""
    with ExitStack() as stack:
        ways = ("cores 2", "onnx 2")
        children = {way: stack.enter_context(_contender(way, model, bundle, None)) for way in ways}
        return {
            way: child.call("paused", _TIMEOUT_S, requests=requests, pause_s=_PAUSE_S)
            for way, child in children.items()
        }


@contextmanager
def _contender(way: str, model: Model, bundle: Path, limit_m: int | None) -> Iterator[Child]:
    shapes = [f"{name}={','.join(map(str, dims))}" for name, dims in model.inputs.items()]
    with ExitStack() as stack:
        cgroup = ""
        if limit_m is not None:
            folder = stack.enter_context(limit_cgroup("under_limit", f"-{WAYS.index(way)}"))
            set_limit(folder, limit_m)
            cgroup = str(folder)
        given = [cgroup, way, str(bundle), str(model.path), *shapes]
        child = Child("benchmarks.support.limit_contender", given, env={"PYTHONPATH": import_path()})
        stack.callback(child.stop)
        yield child


def _percentiles(latencies_s: Sequence[float]) -> dict[str, float]:
    ranks = statistics.quantiles(latencies_s, n=100, method="inclusive")
    return {"p50_s": ranks[49], "p99_s": ranks[98]}


def _report(args: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    write_result("under_limit", args, {"requests_a_turn": _REQUESTS, "seed": _SEED, "load": LOAD, "found": found})
    lines = [_line(each) for each in found if each["limit_m"]]
    print(f"under_limit: {'; '.join(lines)}")


def _line(each: dict[str, Any]) -> str:
    """The ratios: of rates above 1, and of latencies below 1, fractune is better."""
    ways = each["ways"]
    best = min((ways[name] for name in SETTINGS), key=lambda way: float(way["p99_s"]))
    chosen, rounded = ways[CHOSEN], ways[ROUNDED]
    most_per_s = max(_median(ways[THROUGHPUT]), _median(ways[POOL]))
    return (
        f"{each['model']} at {each['limit_m']}m: rate {most_per_s / _median(rounded):.2f}x, p50 "
        f"{chosen['p50_s'] / rounded['p50_s']:.2f}x and p99 {chosen['p99_s'] / rounded['p99_s']:.2f}x of whole cores; "
        f"p99 {chosen['p99_s'] / ways[DEFAULTS]['p99_s']:.2f}x of ONNX Runtime's defaults, "
        f"{chosen['p99_s'] / best['p99_s']:.2f}x of its best settings"
    )


def _median(way: dict[str, Any]) -> float:
    return float(statistics.median(way["loop_per_s"]))


def _print(each: dict[str, Any]) -> None:
    print(f"{each['model']} at {each['limit_m']}m, {each['rate_per_s']:.1f} requests/s at {LOAD:.0%} load")
    for name, way in each["ways"].items():
        print(
            f"  {name:<16} {way['chosen']:<16} loop {_median(way):7.1f}/s   p50 {1e3 * way['p50_s']:7.1f} ms   "
            f"p99 {1e3 * way['p99_s']:7.1f} ms"
        )


def _print_pauses(each: dict[str, Any]) -> None:
    for name, way in each["pauses"].items():
        print(f"{each['model']}, {name}, after a pause: {way['paused'] / way['loop']:.2f}x of its loop, no limit")


if __name__ == "__main__":
    main()
