"""Turns on a GPU: a measurer keeps its claim from one piece of work to the next, for a bounded time.

Beside measurers of small shares, one that needs the whole GPU would otherwise alternate with them piece by piece, and
the GPU would empty each time. With turns each takes several pieces that wait in its queue. A turn ends with the first
piece that ends after its time, or when no work waits (`WorkLoop`). New claims still wait behind those that came before,
so no measurer starves.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from fractune_workers.locks.gpu_slots import Claim, GpuSlots, HeldClaim, MeasurementSlot

TURN_S = 0.5
"""Longer turns have fewer but longer waits, and the GPU is idle between two pieces (`benchmarks.simulated_gpu`)"""


class GpuTurns(GpuSlots):
    """The slots of one measurer. Belongs to one thread."""

    def __init__(self, directory: Path, identity: str, turn_s: float = TURN_S) -> None:
        super().__init__(directory, identity)
        self._turn_s = turn_s
        self._kept: HeldClaim | None = None
        self._ends_s = 0.0
        """of the turn, in monotonic seconds"""

    @property
    def under_way(self) -> bool:
        """Whether a claim is held, perhaps between two pieces of work."""
        return self._kept is not None

    @contextlib.contextmanager
    def holding(self, claim: Claim) -> Iterator[MeasurementSlot]:
        """Hold `claim`, which may be held already; afterwards it is kept while the turn lasts, until `end`."""
        try:
            with self._slot(self._take(claim)) as slot:
                yield slot
        except BaseException:
            self.end()
            raise
        if self._is_over():
            self.end()

    def end(self) -> None:
        """End the turn: let others in."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _take(self, claim: Claim) -> HeldClaim:
        if self._kept is None or self._kept.claim != claim or self._is_over():
            self.end()
            self._kept = self.hold(claim)
            self._ends_s = time.monotonic() + self._turn_s
        return self._kept

    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_s
