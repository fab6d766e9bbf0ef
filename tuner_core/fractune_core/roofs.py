"""How fast a share can be at best (`Roof`), and what an operator asks of it (`Arithmetic`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fractune_core.fields import known_fields


@dataclass(frozen=True)
class Roof:
    """What the arithmetic and the memory of a share gave, each asked for alone, on all units of the share."""

    gflops: float
    """10^9 float32 operations a second; a fused multiply-add counts as two"""
    gb_per_s: float
    """10^9 bytes a second, from and to memory"""
    cache_bytes: int
    """what fits into the last-level cache: traffic of no more than this may never reach the memory"""

    def raised_to(self, other: Roof) -> Roof:
        """Of each figure the larger: what slowed one measurement down is no limit of the share."""
        return Roof(
            max(self.gflops, other.gflops), max(self.gb_per_s, other.gb_per_s), max(self.cache_bytes, other.cache_bytes)
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Roof:
        return cls(**known_fields(cls, data))


@dataclass(frozen=True)
class Arithmetic:
    """What one run of an operator asks of a processor, by its TIR before any schedule."""

    flops: float
    """float32 operations as TVM estimates them: roughly where there is padding (the zeros are counted) or a
    transcendental function (counted as one); 0 = not known"""
    io_bytes: int
    """sizes of its distinct inputs and outputs: what has to come from or go to memory once, even if all else stays in
    caches. Of a table that is only looked into all of it is counted. 0 = not known"""

    @property
    def known(self) -> bool:
        return self.flops > 0 and self.io_bytes > 0
