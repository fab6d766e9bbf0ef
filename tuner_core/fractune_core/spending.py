"""Costs of work in the fleet: the ledger's entries, one for each piece of work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

MEASURING = ("measure", "time_model")
"""work that holds a share; all other work takes CPU time"""


@dataclass(frozen=True)
class WorkCost:
    """Cost of one piece of work, as its worker reports it."""

    work_id: str
    job: str
    """the job that requested it first, where others wait for it too"""
    task: str
    """kind of work: `Work.task`"""
    share: str
    """share of the measurement; empty for work that measures nothing"""
    worked_s: float
    """from its beginning to its end, without waiting for cores or a GPU"""
    cpu_s: float
    """CPU time of the worker and its children during the work"""
    ended_at: float
    """seconds since 1970, by the worker's clock"""

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for an invalid event."""
        work_id, job, task, share = (str(event[name]) for name in ("work_id", "job", "task", "share"))
        secs = [float(event[name]) for name in ("worked_s", "cpu_s", "ended_at")]
        if not all(math.isfinite(each) and each >= 0 for each in secs):
            raise ValueError(f"seconds are {secs}")
        return cls(work_id, job, task, share, *secs)


@dataclass(frozen=True)
class Spending:
    """Total cost of one kind of work."""

    task: str
    share: str
    pieces: int
    worked_s: float
    cpu_s: float
