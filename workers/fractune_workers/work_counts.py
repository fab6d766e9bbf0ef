"""The counters of this worker: the numbers of `fractune_core.fleet.worker_counts`, to be added up."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from fractune_core.fleet.messages import BUSY, IDLE, WorkerInfo
from fractune_core.fleet.worker_counts import (
    COUNT,
    GATE_WAIT,
    SCHEDULE_TO_START,
    SUM,
    WORK_DURATION,
    CountKey,
    bucket_of,
    counts_to_json,
)


class WorkCounts:
    """Thread-safe: one thread works and counts, another renews the worker's entry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[CountKey, float] = defaultdict(float)
        self._busy = False
        self._began = time.monotonic()

    def begin(self, kind: str, waited_s: float) -> None:
        """A piece of work of this kind begins, `waited_s` after it was queued, by the clocks of two hosts."""
        with self._lock:
            self._busy = True
            self._note(SCHEDULE_TO_START, kind, max(0.0, waited_s))

    def end(self, kind: str, took_s: float, locks_s: float) -> None:
        """The work has ended, well or not; of `took_s` it waited `locks_s` for locks."""
        with self._lock:
            self._busy = False
            self._note(WORK_DURATION, kind, max(0.0, took_s - locks_s))
            self._note(GATE_WAIT, kind, locks_s)

    def add(self, name: str, label: str = "", count: int = 1) -> None:
        """Add `count` to a counter."""
        with self._lock:
            self._counts[CountKey(name, label, COUNT)] += count

    def describe(self, info: WorkerInfo) -> None:
        """Fill in the present counts of the worker's entry."""
        with self._lock:
            info["state"] = BUSY if self._busy else IDLE
            info["uptime_s"] = time.monotonic() - self._began
            info["counts"] = counts_to_json(self._counts)

    def _note(self, name: str, label: str, secs: float) -> None:
        self._counts[CountKey(name, label, bucket_of(secs))] += 1
        self._counts[CountKey(name, label, SUM)] += secs
