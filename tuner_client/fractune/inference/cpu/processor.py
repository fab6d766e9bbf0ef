"""Check that this processor can run a bundle's code, without a compiler: by `/proc/cpuinfo` alone."""

from __future__ import annotations

import platform
from pathlib import Path

from fractune_core.errors import BadBundle
from fractune_core.files.bundles import Bundle

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
    _check_architecture(bundle)
    facts = read_cpuinfo(cpuinfo)
    isa, host = bundle.manifest["device"]["isa"], isa_name(facts) or _ask_llvm()
    if isa != host:
        raise BadBundle(f"{bundle.name} is for the CPU '{isa}', this one is '{host or 'unknown'}'; tune the model here")
    _check_features(bundle, facts)


def check_host_code(bundle: Bundle, cpuinfo: Path = CPUINFO) -> None:
    """As `check_processor`, for the code around the kernels of a GPU: any CPU with its features will do."""
    _check_architecture(bundle)
    _check_features(bundle, read_cpuinfo(cpuinfo))


def _check_architecture(bundle: Bundle) -> None:
    architecture = bundle.manifest["code"]["architecture"]
    if architecture != platform.machine():
        raise BadBundle(
            f"{bundle.name} is for the architecture '{architecture}', this one is '{platform.machine()}'; "
            "tune the model here"
        )


def _check_features(bundle: Bundle, facts: dict[str, str]) -> None:
    flags = set(facts.get("flags", "").split())
    lacking = sorted(name for name in bundle.manifest["code"]["features"] if _FLAGS.get(name, name) not in flags)
    if lacking:
        raise BadBundle(f"{bundle.name} may use {', '.join(lacking)}, which this machine lacks; tune the model here")


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
    from fractune.inference.tvm_runtime.runtime import compiler_function

    name = compiler_function("target.llvm_get_system_cpu")
    return str(name()) if name is not None else ""
