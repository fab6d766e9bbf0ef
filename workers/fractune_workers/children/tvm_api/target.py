"""Compilation targets: the real features of this host's CPU, and the target that a user's text means (a GPU's:
cuda_target).

LLVM names a CPU by its family and model number. A hypervisor may hide features that the name implies, and show features
that it does not imply. Then a kernel for the bare name could die of an illegal instruction. So the default target names
the CPU, and corrects the name with the feature bits that LLVM reads from the host.
"""

import json
import platform
from dataclasses import dataclass
from typing import Any

import tvm

from fractune_core import targets
from fractune_core.errors import BadRequest, first_line
from fractune_core.shares import Device
from fractune_core.targets import HOST_WORDS, Attributes, checked, read_attributes, read_target
from fractune_workers.children.tvm_api import cuda_target
from fractune_workers.children.tvm_api.keep_out import load_cuda
from fractune_workers.children.tvm_api.processor import cpu_device

_ADDED_FEATURES = frozenset({"avx512bf16", "avx512fp16", "avx512vnni", "avxvnni", "avxvnniint8", "f16c", "fma"})
"""Arithmetic that vector code profits from. Not AMX: a process needs the kernel's permission for it."""
_COMPUTES = (
    "adx",
    "aes",
    "amx",
    "avx",
    "bmi",
    "f16c",
    "fma",
    "gfni",
    "lzcnt",
    "movbe",
    "pclmul",
    "popcnt",
    "sha",
    "sse",
    "ssse",
    "vaes",
    "vpclmul",
    "xop",
)
"""First letters of the names of features that a compiler uses by itself; the other features serve operating systems."""


def default_target(cores: int) -> tvm.target.Target:
    """LLVM's target for this host: its CPU name, less what it lacks, with `cores` as `num-cores`."""
    mcpu = host_cpu()
    implied = _target_features({"mcpu": mcpu})
    present, absent = _host_features()
    # In this order: LLVM reads them from left to right, and a later +avx512bf16 would bring a hidden avx2 back.
    mattr = [f"+{name}" for name in sorted((present - implied) & _ADDED_FEATURES)]
    mattr += [f"-{name}" for name in sorted(implied & absent)]
    config: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": cores}
    if mattr:
        config["mattr"] = mattr
    if platform.machine() != "x86_64":
        config["mtriple"] = _host_triple()
    return tvm.target.Target(config)


def parse_target(text: str, cores: int) -> tvm.target.Target:
    """The target that `text` means: empty or `native` for this host, JSON, a TVM tag, `llvm -mcpu=...`, `cuda:sm_90`.

    `cores` becomes a CPU's `num-cores` where the text does not name it. Raises BadRequest for a target that
    `fractune_core.targets` refuses, or that TVM, LLVM or this machine's CUDA toolkit does not know.
    """
    text = text.strip()
    if text in HOST_WORDS:
        return default_target(cores)
    asked = read_target(text)
    attributes = checked(text, _plain(_target(text, asked))) if isinstance(asked, str) else asked
    if targets.is_cuda(attributes):
        # Before TVM asks a GPU for what is missing.
        return _target(text, cuda_target.completed(text, attributes, cuda_target.compiler_here()))
    target = _target(text, attributes)
    _check_cpu(text, target)
    if "num-cores" in target.attrs:
        return target
    return tvm.target.Target({**_plain(target), "num-cores": cores})


def load_target(text: str) -> tvm.target.Target:
    """The target of a record or a message, TVM's JSON. Raises BadRequest for what `fractune_core.targets` refuses."""
    return _target(text, read_attributes(text))


def target_key(target: tvm.target.Target) -> str:
    """Identity of a target for lookups, as `fractune_core.targets` defines it."""
    return targets.target_key(json.dumps(_plain(target)))


def missing_features(target: tvm.target.Target) -> list[str]:
    """Instruction sets that code for `target` may use, and that this host is known to lack: the code would die here.

    For a target of another architecture, the name of that architecture.
    """
    if architecture(target) != _host_triple().partition("-")[0]:
        return [architecture(target)]
    _, absent = _host_features()
    return sorted(set(needed_features(target)) & absent)


def needed_features(target: tvm.target.Target) -> list[str]:
    """Instruction sets that code for `target` may use, by LLVM's names: `avx2`, `fma`."""
    return sorted(name for name in _target_features(_plain(target)) if name.startswith(_COMPUTES))


_HALF_AS_WIDE = ("znver4",)
"""LLVM's names of CPUs with multipliers of 256 bits that compute vectors of 512 in two steps"""
_KEEPING_SUMS = ("znver5",)
"""CPUs on which sums that go to memory and back cost more than weights that come from the second cache again"""


@dataclass(frozen=True)
class VectorUnit:
    lanes: int
    """float32 in a register: 16 with AVX-512, 8 with AVX, 4 with SSE or NEON"""
    registers: int
    multiplies: int = 2
    """vectors that a cycle can begin to multiply and add"""
    keeps_sums: bool = False
    """whether sums that leave the registers before they are done cost much"""


def vector_unit(target: tvm.target.Target) -> VectorUnit:
    """Of a CPU target, from the features that LLVM may use for it."""
    features = needed_features(target)
    if "avx512f" in features:
        mcpu = target.attrs.get("mcpu")
        return VectorUnit(16, 32, 1 if mcpu in _HALF_AS_WIDE else 2, keeps_sums=mcpu in _KEEPING_SUMS)
    if "avx" in features:
        return VectorUnit(8, 16)
    return VectorUnit(4, 32 if architecture(target) in ("aarch64", "arm64") else 16)


def host_cpu() -> str:
    """LLVM's name for this host's CPU, for example `rocketlake`."""
    return str(tvm.get_global_func("target.llvm_get_system_cpu")())


def architecture(target: tvm.target.Target) -> str:
    """The first part of its triple, this host's where it has none: `x86_64`."""
    return str(target.attrs.get("mtriple") or _host_triple()).partition("-")[0]


def _host_triple() -> str:
    return str(tvm.get_global_func("tvm.codegen.llvm.GetDefaultTargetTriple")())


def host_device() -> Device:
    """The host CPU as a device (`cpu_device`)."""
    return cpu_device(host_cpu())


def _target(text: str, asked: Attributes | str) -> tvm.target.Target:
    if isinstance(asked, str) or targets.is_cuda(asked):  # a tag may be a GPU's
        load_cuda()
    try:
        return tvm.target.Target(asked)
    except Exception as error:
        raise BadRequest(f"target '{text}': {first_line(error)}") from error


def _check_cpu(text: str, target: tvm.target.Target) -> None:
    """LLVM falls back to `generic` for a CPU that it does not know, with only a line on standard error."""
    mcpu = target.attrs.get("mcpu")
    triple = target.attrs.get("mtriple") or _host_triple()
    if mcpu and not tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, triple):
        raise BadRequest(f"target '{text}': LLVM knows no CPU '{mcpu}'; this host's is '{host_cpu()}'")


def _plain(target: tvm.target.Target) -> dict[str, Any]:
    """The target as plain JSON values."""
    config: dict[str, Any] = json.loads(str(target))
    return config


def _target_features(config: dict[str, Any]) -> set[str]:
    attributes = {name: config[name] for name in ("mcpu", "mattr", "mtriple") if config.get(name)}
    target = tvm.target.Target({"kind": "llvm", **attributes})
    return {str(name) for name in tvm.get_global_func("target.llvm_get_cpu_features")(target)}


def _host_features() -> tuple[set[str], set[str]]:
    """Features that the host has, and those that it is known to lack; LLVM is silent about the others."""
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    known = {str(name): bool(value) for name, value in features.items()}
    return {name for name, on in known.items() if on}, {name for name, on in known.items() if not on}
