"""The roofline model (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009): how close to the limit a time is.

An operator takes at least as long as its arithmetic at the peak, and as its traffic at the bandwidth of the memory. So
attainable seconds = max(flops / peak, bytes / bandwidth). The part of the roof that it reaches is attainable over
measured seconds. Writes may overlap reads, so the bandwidth depends on the part that is written.

On a GPU the launch of a kernel is a limit too: the host needs some microseconds for each, whatever the kernel does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

from fractune_core.codec.plain_json import JsonObject

NEAR = 0.9
"""an operator at this part of its roof has almost nothing to gain"""
DOUBTFUL = 1.3
"""above this part the estimate of the arithmetic or the roof is wrong, and nothing is concluded from them"""
LAUNCH_BOUND = 1.5
"""a time of up to so many launch floors says more about the host's launches than about the kernels"""


@dataclass(frozen=True)
class Roof(JsonObject):
    """Measured limits of a share: its arithmetic and its memory, each measured alone on all units of the share; on a
    GPU the launch of a kernel instead. 0 = not known.
    """

    gflops: float
    """10^9 float32 operations a second; a fused multiply-add counts as two"""
    gb_per_s: float
    """10^9 bytes a second, from and to memory, where one of three is written"""
    cache_bytes: int
    """size of the last-level cache: traffic of up to this size may never reach the memory"""
    launch_s: float = 0.0
    """seconds of an empty kernel in a row of many, the launch floor: no kernel takes less. A CPU launches nothing"""
    read_gb_per_s: float = 0.0
    """10^9 bytes a second from memory, where nothing is written"""

    @property
    def has_rates(self) -> bool:
        """Whether its arithmetic and its memory are known."""
        return self.gflops > 0 and self.gb_per_s > 0

    def raised_to(self, other: Roof) -> Roof:
        """The best of each figure: whatever slowed one measurement down is not a limit of the share."""
        return Roof(
            max(self.gflops, other.gflops),
            max(self.gb_per_s, other.gb_per_s),
            max(self.cache_bytes, other.cache_bytes),
            min(filter(None, (self.launch_s, other.launch_s)), default=0.0),
            max(self.read_gb_per_s, other.read_gb_per_s),
        )


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic and traffic of one run of an operator, by its TIR before any schedule."""

    flops: float
    """float32 operations as TVM estimates them: roughly where there is padding (the zeros are counted) or a
    transcendental function (counted as one); 0 = not known"""
    io_bytes: int
    """sizes of its distinct inputs and outputs: bytes that must come from or go to memory once, even if everything else
    stays in caches. A lookup table counts as a whole. 0 = not known"""
    written_bytes: int = 0
    """those of its outputs"""


def attainable_s(arithmetic: Arithmetic, roof: Roof) -> float | None:
    """Seconds that one run takes at least; None when that is not known.

    The bandwidth of the caches is not measured. So nothing is known of an operator that its traffic limits while all of
    the traffic may stay in the last-level cache. The traffic alone limits one with unknown operations.
    """
    moving_s = from_memory_s(arithmetic, roof)
    if not moving_s or not roof.has_rates:
        return None
    computing_s = _computing_s(arithmetic, roof)
    if moving_s > computing_s and arithmetic.io_bytes <= roof.cache_bytes:
        return None
    return max(computing_s, moving_s)


def _computing_s(arithmetic: Arithmetic, roof: Roof) -> float:
    return arithmetic.flops / (roof.gflops * 1e9)


def roof_part(least_s: float | None, measured_s: float | None) -> float | None:
    """Attainable over measured seconds: 0.5 = it could be twice as fast at most; None when not known, or doubtful."""
    if least_s is None or not _is_time(measured_s):
        return None
    part = least_s / measured_s
    return part if part <= DOUBTFUL else None


def is_launch_bound(measured_s: float | None, floor_s: float | None) -> bool | None:
    """Whether a run takes hardly longer than the launches of its kernels, `floor_s` seconds: then shares tie, because
    the host is timed. None where either is not known.
    """
    if not floor_s or not _is_time(measured_s):
        return None
    return measured_s <= LAUNCH_BOUND * floor_s


def reached(arithmetic: Arithmetic | None, roof: Roof | None, measured_s: float | None) -> float | None:
    """The part of the roof that a run of `measured_s` seconds reaches; None when it is not known, or doubtful."""
    return None if arithmetic is None or roof is None else roof_part(attainable_s(arithmetic, roof), measured_s)


def is_memory_bound(arithmetic: Arithmetic | None, roof: Roof | None, measured_s: float | None) -> bool | None:
    """Whether `reached` is a part of what the memory allows, and not of what the arithmetic does; None without it."""
    if arithmetic is None or roof is None or reached(arithmetic, roof, measured_s) is None:
        return None
    return (from_memory_s(arithmetic, roof) or 0.0) > _computing_s(arithmetic, roof)


def raised(arithmetic: Arithmetic, roof: Roof, measured_s: float) -> Roof:
    """The roof that allows a run of `measured_s` seconds. A run that is faster than its roof proves that the roof was
    measured too low. The same roof where the run is slower, or its arithmetic in doubt.

    Only for the direct implementation, because others may do fewer operations than are counted.
    """
    part = reached(arithmetic, roof, measured_s)
    if part is None or part <= 1 or not arithmetic.flops:
        return roof
    reaches_memory = arithmetic.io_bytes > roof.cache_bytes
    faster = (from_memory_s(arithmetic, roof) or 0.0) / measured_s if reaches_memory else 0.0
    bandwidths = Roof(0.0, faster * roof.gb_per_s, 0, read_gb_per_s=faster * roof.read_gb_per_s)
    return roof.raised_to(bandwidths).raised_to(Roof(arithmetic.flops / measured_s / 1e9, 0.0, 0))


def gflops(arithmetic: Arithmetic | None, measured_s: float | None) -> float | None:
    """10^9 operations a second; None when they are not known."""
    if arithmetic is None or not arithmetic.flops or not _is_time(measured_s):
        return None
    return arithmetic.flops / measured_s / 1e9


def from_memory_s(arithmetic: Arithmetic | None, roof: Roof | None) -> float | None:
    """Seconds in which the share reads and writes an operator's data in memory, once; None when not known.

    Between reads alone and the mix of `gb_per_s`, the time of a byte grows with the part that is written.
    """
    if arithmetic is None or roof is None or not roof.gb_per_s:
        return None
    mixed = min(1.0, 3 * arithmetic.written_bytes / max(1, arithmetic.io_bytes))
    read_gb_per_s = roof.read_gb_per_s or roof.gb_per_s
    return arithmetic.io_bytes * (mixed / roof.gb_per_s + (1 - mixed) / read_gb_per_s) / 1e9


def _is_time(measured_s: float | None) -> TypeGuard[float]:
    """A failure's time is infinite."""
    return measured_s is not None and 0 < measured_s < math.inf
