"""Latency behind real servers: each of `fractune_runtime.serving` with a bundle, and the same server with ONNX Runtime.

Both servers of a pair run at the same time, each confined to the share (cores by affinity, limits by cgroups), and take
turns: while one answers, the other is idle. Both get the same Poisson arrivals, at 30 % and 80 % of what the slower one
answers in a loop. ONNX Runtime has as many threads as the share has whole cores, rounded up, and they do not spin. A
latency begins at the arrival, not when a client is free. Clients run on the same machine. The model is tuned without a
search (`fractune tune --trials 0`). Needs root, cgroup v1, and the package index for the servers.

Usage: python -m benchmarks.servers [--quick] [--out FILE] [--model NAME] [--bundle FILE] [--servers A,B] [--shares A,B]
"""

import argparse
import os
import random
import runpy
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from benchmarks.support import ours
from benchmarks.support.limit_cgroup import limit_cgroup, set_limit
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from fractune.local.model_server import SERVERS, ModelServer, clients, request_of, serving
from fractune_core.cpu_limits import LimitSize
from fractune_core.served import poisson
from fractune_core.shares import Share
from fractune_runtime.loading import load
from tests.support.paths import REPOSITORY
from tests.support.processes.clean_environments import Environment
from tests.support.processes.server_environments import ENVIRONMENTS, python_of, server_environment

LOADS = (0.3, 0.8)
OURS, PEER = "fractune", "onnxruntime"
_PEER_PATH = REPOSITORY / "benchmarks" / "support" / "onnx_in_servers"
_HEAD = """\
| server | share | load | p50 ms, bundle | p50 ms, ONNX Runtime | p99 ms, bundle | p99 ms, ONNX Runtime | p99, ratio \
| requests/s in a loop, bundle | ONNX Runtime |
|---|---|---|---|---|---|---|---|---|---|"""
_ROUNDS, _TURN_S, _LOOP_S = 2, 3.0, 2.0
_END_S = 30.0
_SEED = 1


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="transformer", help="(default: %(default)s)")
    parser.add_argument("--bundle", type=Path, help="of the model, in place of a new one")
    parser.add_argument("--servers", default=",".join(SERVERS), help="(default: %(default)s)")
    parser.add_argument("--shares", default="cpu:1,cpu:1500m", help="(default: %(default)s)")
    args = parser.parse_args()
    model = find_model(args.model)
    names, shares = args.servers.split(","), args.shares.split(",")
    if args.quick:
        names, shares = names[:1], shares[:1]
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as text:
        folder = Path(text)
        wheel = runpy.run_path(str(REPOSITORY / "scripts" / "runtime_wheel"))["build"](folder)
        bundle = args.bundle or _tuned(model, folder)
        request = request_of(load(bundle).random_inputs())
        found = []
        for environment in dict.fromkeys(ENVIRONMENTS[name] for name in names):
            _add_onnx_runtime(server_environment(environment, wheel))
        print(_HEAD, flush=True)
        for name in names:
            for share in shares:
                found.append(_measured(name, share, wheel, {OURS: bundle, PEER: model.path}, folder, request))
                _print(found[-1])
    _report(args, model, found)


def _add_onnx_runtime(environment: Environment) -> None:
    """The version of the tests."""
    ended = environment.run_python("-m", "pip", "install", "-q", f"onnxruntime=={version('onnxruntime')}")
    if ended.returncode:
        raise SystemExit(f"servers: pip cannot install ONNX Runtime: {ended.stderr}")


def _tuned(model: Model, folder: Path) -> Path:
    print(f"{model.name}: fractune tune --trials 0 ...", flush=True)
    return ours.tune(model, "cpu:1,cpu:2", folder / "state", folder, ["--trials", "0"]).bundle


def _measured(
    name: str, share: str, wheel: Path, files: dict[str, Path], folder: Path, request: bytes
) -> dict[str, Any]:
    """Latencies of a server with both runtimes at both loads."""
    python = python_of(name, wheel)
    with ExitStack() as stack:
        servers = {}
        for way, file in files.items():
            confine, threads = stack.enter_context(_confinement(share, way))
            peer = {"ONNX_MODEL": str(file), "ONNX_THREADS": str(threads), "PYTHONPATH": str(_PEER_PATH)}
            env = peer if way == PEER else {}
            log = folder / f"{name}-{way}.log"
            servers[way] = stack.enter_context(serving(name, python, files[OURS], log, env=env, confine=confine))
        asking = stack.enter_context(clients())
        loops = {}
        for way, server in servers.items():
            server.wait()
            loops[way] = _loop_per_s(server, asking, request)
        at = {}
        for part in LOADS:
            rate_per_s = part * min(loops.values())
            latencies_s: dict[str, list[float]] = {way: [] for way in servers}
            for turn in range(_ROUNDS):
                count = max(10, round(rate_per_s * _TURN_S))
                arrivals_s = poisson(rate_per_s, count, random.Random(_SEED + turn))
                for way, server in servers.items():
                    latencies_s[way] += server.latencies_s(asking, request, arrivals_s)
            at[f"{part:.0%}"] = {
                "rate_per_s": rate_per_s,
                **{way: _ranks(all_s) for way, all_s in latencies_s.items()},
            }
        for server in servers.values():
            server.end()
    return {"server": name, "share": share, "loop_per_s": loops, "at": at}


@contextmanager
def _confinement(share: str, way: str) -> Iterator[tuple[Callable[[], None], int]]:
    """What a server's process calls to be under the share, and the number of threads for ONNX Runtime."""
    cpus, parsed = sorted(os.sched_getaffinity(0)), Share.parse(share)
    with limit_cgroup("servers", f"-{way}") as cgroup:  # without a limit too, so that other programs disturb less
        if parsed.size.endswith("m"):
            set_limit(cgroup, LimitSize.parse(parsed.size).limit_m)
        else:
            cpus = cpus[: parsed.cores]
        yield lambda: _enter(cgroup / "cgroup.procs", cpus), parsed.cores
        _wait_for_the_end_of(cgroup / "cgroup.procs")


def _enter(processes: Path, cpus: list[int]) -> None:
    processes.write_text(str(os.getpid()))
    os.sched_setaffinity(0, cpus)


def _wait_for_the_end_of(processes: Path) -> None:
    """Ray's processes end a little later than the program that began them."""
    until = perf_counter() + _END_S
    while processes.read_text() and perf_counter() < until:
        sleep(0.1)


def _loop_per_s(server: ModelServer, asking: Executor, request: bytes) -> float:
    """Requests a second with four clients that ask again at once, after one second of warming up."""
    answered = 0
    for secs in (1.0, _LOOP_S):
        until = perf_counter() + secs
        answered = sum(asking.map(lambda _, until=until: _asked_until(server, request, until), range(4)))
    return answered / _LOOP_S


def _asked_until(server: ModelServer, request: bytes, until: float) -> int:
    count = 0
    while perf_counter() < until:
        server.ask(request)
        count += 1
    return count


def _ranks(latencies_s: Sequence[float]) -> dict[str, float]:
    ranks = statistics.quantiles(latencies_s, n=100, method="inclusive")
    return {"requests": len(latencies_s), "p50_s": ranks[49], "p99_s": ranks[98]}


def _report(args: argparse.Namespace, model: Model, found: list[dict[str, Any]]) -> None:
    write_result("servers", args, {"model": model.name, "seed": _SEED, "found": found})
    better = [_ratio(each, part) < 1 for each in found for part in each["at"]]
    print(f"servers: p99 is below that of the same server with ONNX Runtime in {sum(better)} of {len(better)} cases")


def _ratio(each: dict[str, Any], part: str) -> float:
    at = each["at"][part]
    return float(at[OURS]["p99_s"] / at[PEER]["p99_s"])


def _print(each: dict[str, Any]) -> None:
    """A row of the table for docs/performance.md for each load."""
    for part, at in each["at"].items():
        cells = (f"{1e3 * at[way][rank]:.1f}" for rank in ("p50_s", "p99_s") for way in (OURS, PEER))
        loops = " | ".join(f"{each['loop_per_s'][way]:.0f}" for way in (OURS, PEER))
        place = f"{each['server']} | `{each['share']}` | {part}"
        print(f"| {place} | {' | '.join(cells)} | {_ratio(each, part):.2f} | {loops} |", flush=True)


if __name__ == "__main__":
    main()
