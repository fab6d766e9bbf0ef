"""Devices: one processor, by the facts that decide speed; the product name is only a label."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Device:
    """A GPU or the host CPU."""

    kind: str
    """`cpu` or `cuda`"""
    isa: str
    """LLVM's name of the CPU (`rocketlake`), or the compute capability (`sm_90`)"""
    units: int
    """cores or SMs of the whole device"""
    memory_gib: int
    """rounded, so that a few pages more or less make no other device"""
    l2_kib: int
    """second-level cache of one core, or of the GPU; 0 when the system does not tell"""
    label: str = ""
    """product name, for people"""

    @cached_property
    def key(self) -> str:
        """Identity for lookups; `label` is left out on purpose (one silicon is sold under several names)."""
        return f"{self.kind}-{self.isa}-{self.units}u-{self.memory_gib}gib-l2.{self.l2_kib}kib"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Device:
        return cls(**data)
