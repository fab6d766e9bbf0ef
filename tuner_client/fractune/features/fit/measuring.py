"""Times of a model without a limit, measured at whole cores of this machine, as the simulation takes them."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune.local.stack import own_env
from fractune.local.timing_process import timing_process
from fractune.models.source import check_model_file
from fractune_core.cpu_limits import Service, powers_of_two, threads_text
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files import compared
from fractune_core.files.bundles import SUFFIX, Bundle, is_bundle
from fractune_core.host.cpus import cpu_quota
from fractune_core.served import is_disturbed
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
