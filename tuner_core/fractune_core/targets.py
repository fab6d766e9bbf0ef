"""Targets without TVM: their identity, their cores and their GPU, in TVM's JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from fractune_core.codec.plain_json import read_json

NOT_IDENTITY = ("num-cores", "tag")

FAST_MATH, TF32 = "fast-math", "tf32"
"""Options of a CUDA target, among its `keys`: functions may be approximate, and products of float32 may round their
factors to TensorFloat-32 (10 bits). Code with an option belongs to another target."""

_ARCH = re.compile(r"sm_([1-9][0-9]{1,2})([af]?)")


def target_key(target: str) -> str:
    """Identity of a target (TVM's JSON text) for lookups, as canonical JSON.

    `num-cores` is left out. It steers the search, while a trace already holds every resulting decision. So a schedule
    that was found for one core is the same code on a target of two. Raises ValueError for text that is not JSON.
    """
    config = {name: value for name, value in json.loads(target).items() if name not in NOT_IDENTITY}
    if "mattr" in config:
        config["mattr"] = sorted(config["mattr"])
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def with_cores(target: str, cores: int) -> str:
    """The target (TVM's JSON text) with `cores` as its num-cores; unchanged for 0, and for a GPU, which has none.

    Raises ValueError as above.
    """
    config = json.loads(target)
    return target if not cores or is_cuda(config) else json.dumps({**config, "num-cores": cores})


def is_cuda(config: dict[str, Any]) -> bool:
    """Whether the target (TVM's JSON as a dict) is for an NVIDIA GPU."""
    return config.get("kind") == "cuda"


def arch_of(target: str) -> str:
    """The architecture of a CUDA target (TVM's JSON text): `sm_90`; empty without one."""
    try:
        config = read_json(target)
    except ValueError:
        return ""
    return str(config.get("arch", "")) if isinstance(config, dict) else ""


def capability(arch: str) -> int | None:
    """The compute capability of `sm_90`, `sm_90a` or `sm_100f`: 90, 90 and 100; None for any other text."""
    found = _ARCH.fullmatch(arch)
    return int(found[1]) if found else None


def runs_on(arch: str, isa: str) -> bool:
    """Whether machine code for the architecture `arch` runs on a GPU of the architecture `isa` (`sm_90`).

    Machine code is for one generation: it runs on later capabilities of one major number, `sm_90a` on just its own.
    """
    built, here = capability(arch), capability(isa)
    if built is None or here is None:
        return False
    if arch.endswith("a"):
        return built == here
    return built // 10 == here // 10 and built <= here
