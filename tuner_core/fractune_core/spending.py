"""What work takes of the fleet: the ledger's entries, one for each piece of work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

MEASURING = ("measure", "time_model")
"""what a share is held for; all other work takes CPU time"""


@dataclass(frozen=True)
class WorkCost:
    """What one piece of work took, as the worker tells that did it."""

    work_id: str
    job: str
    """for which it was asked first, where others wait for it too"""
    do: str
    """what it was: `Work.do`"""
    share: str
    """where it was measured; empty for work that measures nothing"""
    worked_s: float
    """from its beginning to its end, without waits for cores or a GPU"""
    cpu_s: float
    """CPU time of the worker and its children meanwhile"""
    ended_at: float
    """seconds since 1970, by the worker's clock"""

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what is no such event."""
        work_id, job, do, share = (str(event[name]) for name in ("work_id", "job", "do", "share"))
        secs = [float(event[name]) for name in ("worked_s", "cpu_s", "ended_at")]
        if not all(math.isfinite(each) and each >= 0 for each in secs):
            raise ValueError(f"seconds are {secs}")
        return cls(work_id, job, do, share, *secs)


@dataclass(frozen=True)
class Spending:
    """What all pieces of one kind took together."""

    do: str
    share: str
    pieces: int
    worked_s: float
    cpu_s: float
