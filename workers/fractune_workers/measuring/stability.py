"""Measurements that count: made while the processor stayed as it was.

A batch is void when the anchor kernel after it differs from the anchor before it, or when the GPU was slowed down
meanwhile to be saved from heat or from its power supply: the machine changed under it. It is measured again, a few
times at most; the records then say how far the anchor was off, and what held the clock down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fractune_workers.gpu.nvml import Clocks

ATTEMPTS = 3
DRIFT_ALLOWED = 0.15
"""fraction by which the anchor after a batch may differ from the anchor before it"""
VOIDING = frozenset({"sw_thermal", "hw_thermal", "hw_power_brake"})
"""Reasons to slow down that come and go. The cap on power is no such reason: a kernel that draws more than a GPU may
have meets it every time, here and where it will run."""

_T = TypeVar("_T")


class AnchoredSession(Protocol):
    """A bench, as far as it tells whether it is still what it was."""

    @property
    def generation(self) -> int: ...

    def anchor(self) -> float:
        """0 when it could not be timed."""
        ...


@dataclass(frozen=True)
class Conditions:
    """What it was like while a batch was measured."""

    anchor_ratio: float
    clock_mhz: int = 0
    throttled_ns: Mapping[str, int] = field(default_factory=dict)


def measure_stable(
    bench: AnchoredSession, clocks: Callable[[], Clocks], run: Callable[[], _T]
) -> tuple[_T, Conditions]:
    """What `run` gives while nothing changed, or at the last attempt; and what it was like then.

    1. Time the anchor, then read the clock: an idle GPU has slowed down, and is awake after the anchor.
    2. Run, time the anchor again, and read the clock again.
    3. Accept, unless the anchor drifted or the clock was held down for one of the reasons that void.
    """
    for _ in range(ATTEMPTS):
        before, child = bench.anchor(), bench.generation
        clock_before = clocks()
        outcome = run()
        after = bench.anchor()
        clock_after = clocks()
        conditions = Conditions(
            after, min(clock_before.sm_mhz, clock_after.sm_mhz), clock_after.throttled_since(clock_before)
        )
        # Each ratio is over the first time in its own child: those of two children tell nothing of a drift.
        comparable = before and after and bench.generation == child
        drifted = bool(comparable) and abs(after / before - 1.0) > DRIFT_ALLOWED
        if not drifted and not VOIDING & conditions.throttled_ns.keys():
            break
    return outcome, conditions
