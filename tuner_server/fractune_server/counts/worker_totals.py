"""Sums of the counts that the workers report.

A worker's counts begin at 0 with the worker. The sums never decrease, whichever workers come and go. They begin with
the server: an earlier server has reported what a worker had counted before.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fractune_core.fleet.messages import WorkerInfo
from fractune_core.fleet.redis_names import WORKER_TTL_S
from fractune_core.fleet.worker_entries import CountKey, counts_from_json

_REMEMBERED = 20_000
"""starts of workers; more than live at one time. The one heard of longest ago is forgotten first."""


class WorkerGroup(NamedTuple):
    role: str
    share: str
    """empty for roles that do not measure"""
    state: str
    """BUSY, IDLE, or `unknown` for workers of older versions"""


class WorkerTotals:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._totals: defaultdict[CountKey, float] = defaultdict(float)
        self._heard: dict[tuple[str, float], Mapping[CountKey, float]] = {}
        """last counts of each start of a worker, by its name and the time of the start"""
        self._live: Counter[WorkerGroup] = Counter()
        self._looked_at = -float(WORKER_TTL_S)

    def take(self, workers: Iterable[WorkerInfo]) -> None:
        """Note all live workers, and add what they have counted since the last call."""
        with self._lock:
            live = list(workers)
            for each in live:
                self._take(each)
            self._live = Counter(WorkerGroup(w["role"], w["share"], w.get("state", "unknown")) for w in live)
            self._looked_at = self._clock()

    def live(self) -> dict[WorkerGroup, int] | None:
        """Number of live workers; None if the last look is so old that all of them may be gone."""
        with self._lock:
            return None if self._clock() - self._looked_at > WORKER_TTL_S else dict(self._live)

    def totals(self) -> dict[CountKey, float]:
        with self._lock:
            return dict(self._totals)

    def _take(self, worker: WorkerInfo) -> None:
        start = worker["name"], worker["started_at"]
        counts = counts_from_json(worker.get("counts", []))
        known = self._heard.pop(start, None)
        if known is None:
            is_older = worker.get("uptime_s", 0.0) > self._clock() - self._began
            known = counts if is_older else {}
        self._heard[start] = counts
        while len(self._heard) > _REMEMBERED:
            del self._heard[next(iter(self._heard))]
        for key, count in counts.items():
            self._totals[key] += max(0.0, count - known.get(key, 0.0))
