"""Compilation targets: the real features of this host's CPU, and the target that a user's text means (a GPU's:
cuda_target).

LLVM names a CPU by its family and model number. A hypervisor may hide features that the name implies, and show features
that it does not imply. Then a kernel for the bare name could die of an illegal instruction. So the default target names
the CPU, and corrects the name with the feature bits that LLVM reads from the host.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from fractune_core import targets
from fractune_core.codec.plain_json import read_json
from fractune_core.errors import BadRequest, first_line
from fractune_core.host.cpu_name import cpu_name
from fractune_core.host.memory import host_memory_bytes
from fractune_core.shares import Device
from fractune_workers.children.tvm_api import cuda_target

_HOST_WORDS = ("native", "host")
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
_HINT = 'write native, cuda:sm_90, llvm -mcpu=skylake-avx512, or JSON: {"kind": "llvm", "mcpu": "skylake-avx512"}'


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

    `cores` becomes a CPU's `num-cores` where the text does not name it. Raises BadRequest for a target that TVM, LLVM
    or this machine's CUDA toolkit does not know, and for a target other than a CPU or an NVIDIA GPU.
    """
    text = text.strip()
    if not text or text in _HOST_WORDS:
        return default_target(cores)
    config = _config(text)
    if isinstance(config, dict) and targets.is_cuda(config):
        config = _cuda_config(text, config)  # before TVM asks a GPU for what is missing
    target = _target(text, config)
    if target.kind.name == "cuda":
        return _target(text, _cuda_config(text, _plain(target)))
    if target.kind.name != "llvm":
        raise BadRequest(f"target '{text}': '{target.kind.name}' is neither a CPU nor an NVIDIA GPU; {_HINT}")
    _check_cpu(text, target)
    _check_features(text, target)
    if "num-cores" in target.attrs:
        return target
    return tvm.target.Target({**_plain(target), "num-cores": cores})


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


@dataclass(frozen=True)
class VectorUnit:
    lanes: int
    """float32 in a register: 16 with AVX-512, 8 with AVX, 4 with SSE or NEON"""
    registers: int


def vector_unit(target: tvm.target.Target) -> VectorUnit:
    """Of a CPU target, from the features that LLVM may use for it."""
    features = needed_features(target)
    if "avx512f" in features:
        return VectorUnit(16, 32)
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
    """The host CPU as a device; its units are all cores of the machine, whatever this process may use."""
    return Device(
        kind="cpu",
        isa=host_cpu(),
        units=os.cpu_count() or 1,
        memory_gib=round(host_memory_bytes() / 2**30),
        l2_kib=_l2_kib(Path("/sys/devices/system/cpu/cpu0/cache")),
        label=cpu_name(),
    )


def last_cache_bytes() -> int:
    """Size of the whole last-level cache, shared or not; 0 when the system does not show it."""
    return max(_cache_kib(Path("/sys/devices/system/cpu/cpu0/cache")).values(), default=0) * 1024


def _target(text: str, config: dict[str, Any] | str) -> tvm.target.Target:
    try:
        return tvm.target.Target(config)
    except Exception as error:
        raise BadRequest(f"target '{text}': {first_line(error)}; {_HINT}") from error


def _cuda_config(text: str, config: dict[str, Any]) -> dict[str, Any]:
    return cuda_target.completed(text, config, cuda_target.compiler_here())


def _config(text: str) -> dict[str, Any] | str:
    if text == "cuda" or text.startswith(cuda_target.PREFIX):
        return cuda_target.config_of(text)
    if text.startswith("{"):
        try:
            config: dict[str, Any] = read_json(text)
        except ValueError as error:
            raise BadRequest(f"target '{text}' is not JSON: {error}; {_HINT}") from error
        return config
    words = text.split()
    if len(words) == 1:
        return text
    return _from_flags(text, words[0], words[1:])


def _from_flags(text: str, kind: str, flags: list[str]) -> dict[str, Any]:
    """The form of TVM before 0.20, which people still have in their scripts: `llvm -mcpu=x -mattr=+a,+b`."""
    config: dict[str, Any] = {"kind": kind}
    for flag in flags:
        name, equals, value = flag.lstrip("-").partition("=")
        if not flag.startswith("-") or not equals or not value:
            raise BadRequest(f"target '{text}': cannot read '{flag}', expected -NAME=VALUE; {_HINT}")
        config[name] = _flag_value(name, value)
    return config


def _flag_value(name: str, value: str) -> Any:
    if name in {"mattr", "keys", "libs"}:
        return value.split(",")
    return int(value) if value.isdecimal() else value


def _check_cpu(text: str, target: tvm.target.Target) -> None:
    """LLVM falls back to `generic` for a CPU that it does not know, with only a line on standard error."""
    mcpu = target.attrs.get("mcpu")
    triple = target.attrs.get("mtriple") or _host_triple()
    if mcpu and not tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, triple):
        raise BadRequest(f"target '{text}': LLVM knows no CPU '{mcpu}'; this host's is '{host_cpu()}'")


def _check_features(text: str, target: tvm.target.Target) -> None:
    """LLVM ignores a feature that is not written as +NAME or -NAME, or that it does not know."""
    unsigned = [str(name) for name in target.attrs.get("mattr") or () if str(name)[:1] not in {"+", "-"}]
    if unsigned:
        raise BadRequest(f"target '{text}': write the feature '{unsigned[0]}' as +{unsigned[0]} or -{unsigned[0]}")


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


def _l2_kib(cache: Path) -> int:
    """Size of the second-level cache of one core in KiB; 0 when the system does not tell."""
    return _cache_kib(cache).get("2", 0)


def _cache_kib(cache: Path) -> dict[str, int]:
    """Sizes of the caches of one core in KiB, by level; those that the system does not tell are absent."""
    sizes: dict[str, int] = {}
    for index in sorted(cache.glob("index*")):
        try:
            level, size = (index / "level").read_text().strip(), (index / "size").read_text().strip()
        except OSError:
            continue
        sizes[level] = int(size.rstrip("KM")) * (1024 if size.endswith("M") else 1)
    return sizes
