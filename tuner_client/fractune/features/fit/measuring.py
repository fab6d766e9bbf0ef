"""Times of a model at whole cores of this machine, as the simulation takes them, and under the limit that was found."""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fractune.local.stack import own_env
from fractune.local.timing_process import timing_process
from fractune.models.source import check_model_file
from fractune_core.analysis.limit_fitting import Alternative, Goal
from fractune_core.analysis.limit_prediction import enough_requests, p99_spread, percentile, serve
from fractune_core.cpu_limits import CpuLimit, LimitSize, Service, powers_of_two, threads_text
from fractune_core.errors import BadBundle, BadRequest, ShareUnavailable
from fractune_core.files import compared
from fractune_core.files.bundles import SUFFIX, Bundle, is_bundle
from fractune_core.host.cpus import cpu_quota
from fractune_core.host.machine import busy_s
from fractune_core.served import TRIES, is_disturbed, poisson
from fractune_core.share_kinds import CPU

FRACTUNE, ONNX_RUNTIME, OPENVINO = "fractune", "ONNX Runtime", "OpenVINO"
KEYS = {FRACTUNE: compared.OURS, ONNX_RUNTIME: compared.ONNX_RUNTIME, OPENVINO: compared.OPENVINO}
"""their names in code"""
_ROUNDS = 20


@dataclass(frozen=True)
class Measured:
    """A model as a runtime runs it without a limit."""

    runtime: str
    """FRACTUNE, ONNX_RUNTIME or OPENVINO"""
    version: str
    """of the runtime; empty for fractune"""
    services: tuple[Service, ...]
    """by number of threads"""
    others_cores: Mapping[int, float] = field(default_factory=dict)
    """cores that other programs had meanwhile, by number of threads"""

    def is_disturbed(self, threads: int) -> bool:
        """Whether other programs made the times with so many threads too long."""
        return is_disturbed(self.others_cores.get(threads, 0.0))

    @property
    def doubts(self) -> str:
        """What makes times too long; empty for nothing."""
        busy = [threads for threads in sorted(self.others_cores) if self.is_disturbed(threads)]
        if not busy:
            return ""
        most = max(self.others_cores[threads] for threads in busy)
        return (
            f"other programs had {most:.2f} cores during the times of {' and '.join(map(threads_text, busy))}, which "
            "are too long: less than the limits marked <= may do; measure again on a quieter machine"
        )


def measure(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    report_line: Callable[[str], None],
    onnx_runtime: str = ONNX_RUNTIME,
) -> Measured:
    """Time a bundle with its variants for whole cores, or an ONNX file in `onnx_runtime` with 1, 2, 4, ... threads.

    Raises BadModel, BadBundle, BadRequest, ShareUnavailable, FractuneError where a runtime is not installed.
    """
    cores = usable_cores()
    if is_bundle(path) or path.suffix == SUFFIX:  # a missing or torn one is named as such
        runtime, threads = FRACTUNE, _threads_of(path, cores)
        if shapes:
            raise BadRequest(f"inputs: the shapes of {path.name} were fixed when it was made; leave them out")
        if onnx_runtime != ONNX_RUNTIME:
            raise BadRequest(
                f"--runtime is for ONNX files, and {path.name} is a bundle; leave it out, or give the file"
            )
    else:
        check_model_file(path)
        runtime, threads = onnx_runtime, powers_of_two(cores)
    counts = ", ".join(map(str, threads))
    report_line(f"timing {path.name} in {runtime} without a limit, with {counts} thread{'s' * (threads != [1])}")
    with timing_process(f"cpu:{threads[-1]}", own_env(), report_line=report_line) as call:
        found = call(
            "time_services",
            runtime=KEYS[runtime],
            path=str(path.absolute()),
            threads=threads,
            rounds=_ROUNDS,
            shapes=dict(shapes),
        )
    services = tuple(map(service_of, found["times"]))
    others_cores = dict.fromkeys((each.threads for each in services), found["others_cores"])
    return Measured(runtime, found["version"], services, others_cores)


def usable_cores() -> int:
    """Whole cores of this process, by its affinity and its quota."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def service_for(measured: Measured, threads: int) -> Service:
    """The one with that number of threads."""
    return next(each for each in measured.services if each.threads == threads)


def service_of(timed: Mapping[str, Any]) -> Service:
    """The times of a number of threads."""
    threads, loop_secs, paced_secs = timed["threads"], timed["loop_secs"], timed["paced_secs"]
    spin_s = timed["pause_cpu_s"] / len(paced_secs) / (threads - 1) if threads > 1 else 0.0
    return Service(threads, tuple(loop_secs), timed["loop_cpu_s"] / len(loop_secs), tuple(paced_secs), spin_s)


def service_json(service: Service) -> dict[str, Any]:
    """Times in seconds."""
    return {
        "threads": service.threads,
        "wall_s": statistics.median(service.wall_s),
        "paced_wall_s": statistics.median(service.paced_wall_s or service.wall_s),
        "cpu_s": service.cpu_s,
        "spin_s": service.spin_s,
        "wall_secs": list(service.wall_s),
        "paced_wall_secs": list(service.paced_wall_s),
    }


def _threads_of(path: Path, cores: int) -> list[int]:
    """The numbers of cores for which a bundle was tuned, as many as this machine has."""
    bundle = Bundle(path)
    bundle.check_undivided("fit")
    try:
        kind, tuned = bundle.manifest["device"]["kind"], sorted(set(bundle.units(CPU).values()))
    finally:
        bundle.close()
    if kind != CPU:
        raise BadBundle(f"{path.name} is for a device of kind '{kind}'; a CPU limit needs a bundle for the CPU")
    threads = [count for count in tuned if count <= cores]
    if not threads:
        raise BadBundle(f"{path.name} has no variant for {cores} cores or fewer; tune it at cpu:1")
    return threads


REQUESTS = 2_000
"""at least: the p99 of fewer says little of the p99 of all requests"""
_WARM_REQUESTS = 10
_RUNS = 20
"""of the simulation of the same arrivals: the phase of the periods is unknown"""


@dataclass(frozen=True)
class Verified:
    """Latencies in seconds of Poisson arrivals at the goal's rate, measured under the real limit."""

    requests: int
    p50_s: float
    p99_s: float
    p99_low_s: float
    """with `p99_high_s` the 95 % interval of the p99 of all such requests, from simulated runs (`p99_spread`)"""
    p99_high_s: float
    predicted_p50_s: float
    """of the same arrivals"""
    predicted_p99_s: float
    other_cores: float
    """that other programs kept busy meanwhile, on average"""
    held: bool
    """the p99 of these requests is at most the goal's"""


@dataclass(frozen=True)
class BehindServer:
    """Latencies in seconds of such arrivals at a real server that has the bundle, under the limit as a whole."""

    server: str
    requests: int
    p50_s: float
    p99_s: float
    request_cpu_s: float
    """CPU time of a request, of all processes of the server"""
    model_cpu_s: float
    """that of an inference in a loop, for comparison"""
    other_cores: float
    """as of `Verified`"""
    held: bool


def check_limits(option: str = "--verify") -> None:
    """Raises ShareUnavailable if this process may not make a cgroup with a CPU limit."""
    from fractune_workers.confinement.limit_cgroups import LimitCgroups

    if lacks := LimitCgroups().lacks():
        raise ShareUnavailable(
            f"{option} needs a cgroup with the limit, and none can be made here: {lacks}; run this as root, or leave"
            f" {option} out"
        )


def verify(
    path: Path,
    measured: Measured,
    found: Alternative,
    goal: Goal,
    shapes: Mapping[str, Sequence[int]],
    report_line: Callable[[str], None],
    seed: int = 0,
) -> Verified:
    """Serve the model under the limit; `seed` draws the arrivals. If it misses the goal while other programs are busy,
    it is served again, three times in all. Raises ShareUnavailable where the limit cannot be made or proved.
    """
    count = enough_requests(goal.rate_per_s, found.limit.period_us, REQUESTS)
    arrivals_s = poisson(goal.rate_per_s, count, random.Random(seed))
    report_line(f"verifying {found.name}: {count:,} requests, which take {arrivals_s[-1]:.0f} s")
    run = partial(_serve, path, measured.runtime, found, goal.cores, shapes, arrivals_s)
    served, p50_s, p99_s = _served_quietly(run, goal, report_line)
    service = service_for(measured, found.threads)
    spread = p99_spread(service, found.limit, replicas=found.replicas, rate_per_s=goal.rate_per_s, requests=count)
    simulated = [
        latency_s
        for run in range(_RUNS)
        for latency_s in serve(service, found.limit, found.replicas, count, arrivals_s, run).latencies_s
    ]
    return Verified(
        requests=count,
        p50_s=p50_s,
        p99_s=p99_s,
        p99_low_s=p99_s / spread[1],
        p99_high_s=p99_s / spread[0],
        predicted_p50_s=percentile(simulated, 0.5),
        predicted_p99_s=percentile(simulated, 0.99),
        other_cores=served["other_cores"],
        held=p99_s <= goal.p99_s,
    )


def verify_behind(
    server: str,
    python: str | os.PathLike[str],
    path: Path,
    measured: Measured,
    found: Alternative,
    goal: Goal,
    report_line: Callable[[str], None],
    seed: int = 0,
) -> BehindServer:
    """The arrivals of `verify` at a server that starts under the limit, with the threads and replicas that were found.

    Raises ShareUnavailable as `verify`, and FractuneError where the server does not start, or does not answer.
    """
    from fractune.local.model_server import clients, request_of, serving_at
    from fractune_runtime.loading import load

    share, body = _share(found.limit, goal.cores, "--server"), request_of(load(path).random_inputs())
    count = enough_requests(goal.rate_per_s, found.limit.period_us, REQUESTS)
    arrivals_s = poisson(goal.rate_per_s, count, random.Random(seed))
    report_line(f"starting {server} with {path.name} at {found.limit.quota_m}m")
    settings = {"REPLICAS": str(found.replicas), "THREADS": str(found.threads)}
    with (
        tempfile.TemporaryDirectory(prefix="fractune-") as folder,
        serving_at(share, server, python, path, Path(folder) / "log", settings) as running,
        clients() as asking,
    ):
        running.wait()
        for _ in range(_WARM_REQUESTS):
            running.ask(body)
        report_line(f"verifying {found.name} behind {server}: {count:,} requests, which take {arrivals_s[-1]:.0f} s")

        def serve() -> dict[str, Any]:
            began_s, busy, own_s, server_s = time.perf_counter(), busy_s(), time.process_time(), running.cpu_s()
            latencies_s = running.latencies_s(asking, body, arrivals_s)
            server_s, own_s = running.cpu_s() - server_s, time.process_time() - own_s
            others_s = busy_s() - busy - server_s - own_s
            elapsed_s = time.perf_counter() - began_s
            cores = max(0.0, others_s / elapsed_s)
            return {"latencies_s": latencies_s, "other_cores": cores, "cpu_s": server_s / count}

        served, p50_s, p99_s = _served_quietly(serve, goal, report_line)
    return BehindServer(
        server=server,
        requests=count,
        p50_s=p50_s,
        p99_s=p99_s,
        request_cpu_s=served["cpu_s"],
        model_cpu_s=service_for(measured, found.threads).cpu_s,
        other_cores=served["other_cores"],
        held=p99_s <= goal.p99_s,
    )


def _served_quietly(
    serve: Callable[[], dict[str, Any]], goal: Goal, report_line: Callable[[str], None]
) -> tuple[dict[str, Any], float, float]:
    """What `serve` returns, its p50 and p99. If it misses the goal while other programs are busy, it runs again."""
    for _ in range(TRIES):
        served = serve()
        latencies_s: list[float] = served["latencies_s"]
        p50_s, p99_s = (percentile(latencies_s, part) for part in (0.5, 0.99))
        if p99_s <= goal.p99_s or not is_disturbed(served["other_cores"]):
            break
        report_line(f"other programs had {served['other_cores']:.2f} cores meanwhile; verifying again")
    return served, p50_s, p99_s


def _serve(
    path: Path,
    runtime: str,
    found: Alternative,
    cores: int,
    shapes: Mapping[str, Sequence[int]],
    arrivals_s: Sequence[float],
) -> dict[str, Any]:
    threads = [found.threads] * found.replicas
    with timing_process(_share(found.limit, cores, "--verify"), own_env(), arrivals_s[-1]) as call:
        answer: dict[str, Any] = call(
            "serve",
            runtime=KEYS[runtime],
            path=str(path.absolute()),
            threads=threads,
            arrivals_s=list(arrivals_s),
            shapes=dict(shapes),
        )
    return answer


def _share(limit: CpuLimit, cores: int, option: str) -> str:
    if limit.burst_us:
        raise ShareUnavailable(
            f"{limit.quota_m}m keep the p99 with a burst of {limit.burst_us} us alone, and {option} makes no burst; "
            f"ask for a longer p99, or leave {option} out"
        )
    return f"cpu:{LimitSize(limit.quota_m, span=cores, period_ms=limit.period_us // 1000)}"
