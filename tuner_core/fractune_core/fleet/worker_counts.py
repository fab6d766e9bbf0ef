"""Counts of a worker since its start, as its entry carries them. They only grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

SCHEDULE_TO_START = "schedule_to_start"
"""seconds from the moment that a piece of work was queued until a worker began it, by what it is (`Work.task`)"""
WORK_DURATION = "work_duration"
"""seconds that it took from then on, without waits for locks, by what it is"""
GATE_WAIT = "gate_wait"
"""seconds that it waited for cores or a GPU, by what it is"""
REMEASURED = "remeasured"
"""how often a batch was measured again, because the machine had changed under it, by share"""
FAULT_EPOCHS = "fault_epochs"
"""how often a GPU was opened again after a fault that its clients had shared; without a label"""

SECS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, math.inf)
"""upper bounds of the buckets into which durations are counted"""
SUM = "sum"
COUNT = "count"


class CountKey(NamedTuple):
    """The meaning of one count."""

    name: str
    """one of the names above"""
    label: str
    field: str
    """COUNT; of a duration SUM (seconds), or the bucket by its upper bound, as text: how many were in this one alone"""


def bucket_of(secs: float) -> str:
    """The field of the bucket for a duration."""
    return str(next(bound for bound in SECS_BOUNDS if secs <= bound))


def counts_to_json(counts: Mapping[CountKey, float]) -> list[list[Any]]:
    return [[*key, value] for key, value in counts.items()]


def counts_from_json(rows: Any) -> dict[CountKey, float]:
    """The counts that `counts_to_json` wrote; of another version, those that can be read."""
    found = rows if isinstance(rows, list) else []
    return {CountKey(*row[:3]): float(row[3]) for row in found if _is_readable(row)}


def _is_readable(row: Any) -> bool:
    match row:
        case [str(), str(), str(), int() | float() as value]:
            return math.isfinite(value)
    return False
