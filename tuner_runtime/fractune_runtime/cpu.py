"""A bundle on the CPU: whether this processor can run its code, the share that this process is under, and the runs."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.errors import BadBundle, FractuneError, ShareUnavailable, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.host.cpus import ROOT, CpuTopology, LimitFiles, Quota, cpu_list, tightest_quota
from fractune_core.share_kinds import CPU, kind_of
from fractune_core.shares import Share
from fractune_runtime.tvm_runtime import tensors
from fractune_runtime.tvm_runtime.runtime import Weights, compiler_function, load_runtime, with_denormals
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec
from fractune_runtime.tvm_runtime.variants import MISFITS, Variant, load_variant, misfit

_SHAPE_CHECK = "match_cast"
"""TVM's RuntimeError for a shape that the code does not take has this text. Other failures of a run, such as refused
memory, are RuntimeErrors as well."""


class OnCpu:
    """See `Backend`. Raises BadBundle, FractuneError, BadRequest for a share that cannot serve a model on a CPU."""

    keeps_inputs = True

    def __init__(
        self, bundle: Bundle, share: Share | None, weights: Weights | None = None, *, denormals: bool = False
    ) -> None:
        if share:
            share.check_serves(CPU)
        self._denormals = denormals
        self._share = share
        self._bundle = bundle
        check_processor(bundle)
        load_runtime()
        self.weights = Weights(bundle) if weights is None else weights.of_member(bundle)

    def look(self) -> ShareHere:
        return share_of(self._share)

    def limits(self) -> tuple[Any, ...]:
        return _LIMITS.read() if self._share is None or self._share.ends else ()

    def load_variant(self, variant: str) -> Variant:
        return load_variant(self._bundle, variant, self.weights, within=partial(with_denormals, kept=self._denormals))

    def arguments(self, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Any]:
        return tensors.as_arguments(specs, inputs)

    def run(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        try:
            return variant.run(arguments)
        except MISFITS as error:
            raise self._failure(error) from error

    def held(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        try:
            return variant.held(arguments)
        except MISFITS as error:
            raise self._failure(error) from error

    def bound(self, variant: Variant, arguments: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., None]:
        compute = variant.bound(arguments, outputs)

        def run(*first: int) -> None:
            try:
                compute(*first)
            except MISFITS as error:
                raise self._failure(error) from error

        return run

    def _failure(self, error: Exception) -> FractuneError:
        if isinstance(error, RuntimeError) and _SHAPE_CHECK not in str(error):
            return FractuneError(f"the model failed on the CPU ({first_line(error)})")
        return misfit(self._bundle, error)

    def placed(self, arguments: Sequence[Any]) -> list[Any]:
        return list(arguments)

    def array(self, output: Any) -> Array:
        return (output if hasattr(output, "ctypes") else tensors.as_array(output)).copy()


CPUINFO = Path("/proc/cpuinfo")

_FLAGS = {
    "amx-bf16": "amx_bf16",
    "amx-complex": "amx_complex",
    "amx-fp16": "amx_fp16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "avx512bf16": "avx512_bf16",
    "avx512bitalg": "avx512_bitalg",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert",
    "avxvnni": "avx_vnni",
    "avxvnniint16": "avx_vnni_int16",
    "avxvnniint8": "avx_vnni_int8",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sha": "sha_ni",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}
"""Linux's names of LLVM's features, where the two differ. A feature that Linux lists under neither name counts as
missing: a new one is refused before it can end the process by an illegal instruction."""


def check_processor(bundle: Bundle, cpuinfo: Path = CPUINFO) -> None:
    """Raises BadBundle if the code is for another processor than this CPU, or may use a feature that this CPU lacks."""
    facts = read_cpuinfo(cpuinfo)
    _check_architecture(bundle.name, bundle.manifest["code"])
    isa, host = bundle.manifest["device"]["isa"], host_isa(facts)
    if isa != host:
        raise BadBundle(f"{bundle.name} is for the CPU '{isa}', this one is '{host or 'unknown'}'; tune the model here")
    _check_features(bundle.name, bundle.manifest["code"], facts)


def check_host_code(bundle: Bundle, cpuinfo: Path = CPUINFO) -> None:
    """As `check_processor`, for the code around the kernels of a GPU: any CPU with its features will do."""
    check_code(bundle.name, bundle.manifest["code"], read_cpuinfo(cpuinfo))


def check_code(name: str, code: Mapping[str, Any], facts: Mapping[str, str]) -> None:
    """Raises BadBundle if the file called `name` has code for another `architecture`, or code that may use `features`
    that this CPU lacks. `facts`: as of `read_cpuinfo`.
    """
    _check_architecture(name, code)
    _check_features(name, code, facts)


def host_isa(facts: dict[str, str]) -> str:
    """LLVM's name for the processor with these facts; empty if neither this module nor a compiler here knows it."""
    return isa_name(facts) or _ask_llvm()


def _check_architecture(name: str, code: Mapping[str, Any]) -> None:
    architecture = code["architecture"]
    if architecture != platform.machine():
        raise BadBundle(
            f"{name} is for the architecture '{architecture}', this one is '{platform.machine()}'; tune the model here"
        )


def _check_features(name: str, code: Mapping[str, Any], facts: Mapping[str, str]) -> None:
    flags = set(facts.get("flags", "").split())
    lacking = sorted(each for each in code["features"] if _FLAGS.get(each, each) not in flags)
    if lacking:
        raise BadBundle(f"{name} may use {', '.join(lacking)}, which this machine lacks; tune the model here")


def read_cpuinfo(path: Path) -> dict[str, str]:
    """The kernel's entry of the first processor; empty when it shows nothing."""
    try:
        first = path.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def isa_name(facts: dict[str, str]) -> str:
    """LLVM's name for the processor (`znver3`) from vendor, family and model; empty for a processor that is not listed.

    Names are given by the same numbers in LLVM's Host.cpp; the processors of servers since 2013 are listed.
    """
    try:
        family, model = int(facts["cpu family"]), int(facts["model"])
    except (KeyError, ValueError):
        return ""
    if facts.get("vendor_id") == "AuthenticAMD":
        return next((name for first, last, name in _AMD.get(family, ()) if first <= model <= last), "")
    if facts.get("vendor_id") == "GenuineIntel" and family == 6:
        if model == _SKYLAKE_SERVER:
            return _skylake_server(set(facts.get("flags", "").split()))
        return _INTEL.get(model, "")
    return ""


_AMD = {
    0x17: ((0x00, 0x2F, "znver1"), (0x30, 0x3F, "znver2"), (0x60, 0x7F, "znver2"), (0x90, 0xAF, "znver2")),
    0x19: (
        (0x00, 0x0F, "znver3"),
        (0x10, 0x1F, "znver4"),
        (0x20, 0x5F, "znver3"),
        (0x60, 0x7F, "znver4"),
        (0xA0, 0xAF, "znver4"),
    ),
    0x1A: ((0x00, 0x77, "znver5"),),
}
_SKYLAKE_SERVER = 0x55
_INTEL = {
    **dict.fromkeys((0x3C, 0x3F, 0x45, 0x46), "haswell"),
    **dict.fromkeys((0x3D, 0x47, 0x4F, 0x56), "broadwell"),
    **dict.fromkeys((0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6), "skylake"),
    0xA7: "rocketlake",
    **dict.fromkeys((0x7D, 0x7E), "icelake-client"),
    **dict.fromkeys((0x6A, 0x6C), "icelake-server"),
    **dict.fromkeys((0x8C, 0x8D), "tigerlake"),
    **dict.fromkeys((0x97, 0x9A), "alderlake"),
    **dict.fromkeys((0xB7, 0xBA, 0xBF), "raptorlake"),
    **dict.fromkeys((0xAA, 0xAC), "meteorlake"),
    0x8F: "sapphirerapids",
    0xCF: "emeraldrapids",
    0xAD: "graniterapids",
    0xAE: "graniterapids-d",
    0xAF: "sierraforest",
}


def _skylake_server(flags: set[str]) -> str:
    """Three generations under one number."""
    if "avx512_bf16" in flags:
        return "cooperlake"
    return "cascadelake" if "avx512_vnni" in flags else "skylake-avx512"


def _ask_llvm() -> str:
    """The processor's name from TVM's compiler, if it is installed; else empty."""
    name = compiler_function("target.llvm_get_system_cpu")
    return str(name()) if name is not None else ""


_LIMITS = LimitFiles()
"""for all models of the process, so that it keeps few files open"""


@dataclass(frozen=True)
class ShareHere:
    """The share of the process."""

    units: int
    """cores: the number of threads that can work at the same time; of a GPU its SMs"""
    cpus: tuple[int, ...]
    """the CPUs of its threads"""
    reason: str
    """the origin of `units`, for people"""
    mechanism: str = "cpu"
    """the limiting mechanism, as in the text of a share; `full` for a whole GPU"""
    mig_profile: str = ""
    """of a MIG instance: `1g.18gb`"""
    quota: Quota | None = None
    """the quota that allows less than all of `cpus`; None also where `units` were requested"""
    warning: str = ""
    """a limit that the environment names and that is not in force, with a remedy; empty if there is none"""
    within: Share | None = None
    """the range that was requested, and `units` are its present part; None for any other request"""

    @property
    def unit(self) -> str:
        """`core` or `sm`"""
        return kind_of(self.mechanism).unit


def share_here(root: Path = ROOT) -> ShareHere:
    """The share of this process, read again from `/proc` and `/sys` below `root`. Units of a quota are its whole cores,
    rounded down, at least one: a model with times takes as many as they show to be best (`under_limit`).
    """
    cpus = allowed_cpus(root)
    quota = tightest_quota(root)
    if quota is None or quota.cores >= len(cpus):
        return ShareHere(len(cpus), cpus, f"{_cores(len(cpus))} by its affinity")
    reason = f"{_cores(quota.cores)} by the quota of its cgroup (its affinity has {_cores(len(cpus))})"
    return ShareHere(max(1, math.floor(quota.cores)), cpus, reason, quota=quota)


def share_of(share: Share | None) -> ShareHere:
    """As `share_here`; so many cores of it if they are requested, of a range as many as there are. Raises
    ShareUnavailable if it has fewer.
    """
    here = share_here()
    if share is None:
        return here
    cores = _cores_of(share, here.units, f"share of this process: {here.reason}")
    reason = f"{f'{_cores(cores)} of {share}' if share.ends else share} as requested, of {here.reason}"
    return replace(here, units=cores, reason=reason, quota=None, within=share if share.ends else None)


def _cores_of(share: Share, available: int, what: str) -> int:
    """The cores that the share has of those that are there. Raises ShareUnavailable if they are too few."""
    least, most = share.ends or (share, share)
    if least.cores > available:
        raise ShareUnavailable(f"share '{share}' is larger than the {what}; request cpu:{available} at most")
    return min(most.cores, available)


def confine(share: Share) -> None:
    """Confine this process to `share`: CPUs that it may use, of different cores if possible (`CpuTopology.choose`).

    Existing threads stay unchanged; those of a model are made after. Raises ShareUnavailable when the share is larger
    than the CPUs of the process, BadRequest for a share that cannot serve a model on a CPU.
    """
    share.check_serves(CPU)
    allowed = sorted(os.sched_getaffinity(0))
    cores = _cores_of(share, len(allowed), f"{_cores(len(allowed))} of this process")
    os.sched_setaffinity(0, CpuTopology.read().choose(allowed, cores))


def _cores(count: float) -> str:
    return f"{count:g} core{'' if count == 1 else 's'}"


def allowed_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """CPUs of the process's first thread, which `taskset` and containers set."""
    try:
        for line in (root / "proc/self/status").read_text().splitlines():
            if line.startswith("Cpus_allowed_list:"):
                return tuple(cpu_list(line.partition(":")[2]))
    except (OSError, ValueError):
        pass
    return tuple(sorted(os.sched_getaffinity(0)))
