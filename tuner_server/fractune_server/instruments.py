"""The metrics that the server counts itself, each where the event happens."""

import collections
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from fractune_core.fleet.messages import WorkerInfo
from fractune_core.fleet.redis_names import WORKER_TTL_S
from fractune_core.fleet.redis_state import CountKey

# Sums of the counts that the workers report.
#
# A worker's counts begin at 0 with the worker. The sums never decrease, whichever workers come and go. They begin
# with the server: an earlier server has reported what a worker had counted before.

_REMEMBERED = 20_000
"""starts of workers; more than live at one time. The one heard of longest ago is forgotten first."""


class WorkerGroup(NamedTuple):
    role: str
    share: str
    """empty for roles that do not measure"""
    state: str
    """BUSY or IDLE"""


class WorkerTotals:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._totals: defaultdict[CountKey, float] = defaultdict(float)
        self._heard: dict[tuple[str, float], Mapping[CountKey, float]] = {}
        """last counts of each start of a worker, by its name and the time of the start"""
        self._live: collections.Counter[WorkerGroup] = collections.Counter()
        self._looked_at = -float(WORKER_TTL_S)

    def take(self, workers: Iterable[WorkerInfo]) -> None:
        """Note all live workers, and add what they have counted since the last call."""
        with self._lock:
            live = list(workers)
            for each in live:
                self._take(each)
            self._live = collections.Counter(WorkerGroup(w.role, w.share, w.state) for w in live)
            self._looked_at = self._clock()

    def live(self) -> dict[WorkerGroup, int] | None:
        """Number of live workers; None if the last look is so old that all of them may be gone."""
        with self._lock:
            return None if self._clock() - self._looked_at > WORKER_TTL_S else dict(self._live)

    def totals(self) -> dict[CountKey, float]:
        with self._lock:
            return dict(self._totals)

    def _take(self, worker: WorkerInfo) -> None:
        start = worker.name, worker.started_at
        counts = {CountKey(*key): value for *key, value in worker.counts}
        known = self._heard.pop(start, None)
        if known is None:
            is_older = worker.uptime_s > self._clock() - self._began
            known = counts if is_older else {}
        self._heard[start] = counts
        while len(self._heard) > _REMEMBERED:
            del self._heard[next(iter(self._heard))]
        for key, count in counts.items():
            self._totals[key] += max(0.0, count - known.get(key, 0.0))


_TICK_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_CALL_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Instruments:
    """Metrics of a server since its start. Thread-safe."""

    def __init__(self) -> None:
        # Otherwise each metric has a second, useless time series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.workers = WorkerTotals()
        self.engine_tick = Histogram(
            "fractune_engine_turn_seconds",
            "Ticks of the engine, without its wait for results.",
            buckets=_TICK_BOUNDS_S,
            registry=self.registry,
        )
        self.recorder_lag = Histogram(
            "fractune_recorder_lag_seconds",
            "From the sending of a worker's result until it was committed and had taken effect.",
            buckets=_LAG_BOUNDS_S,
            registry=self.registry,
        )
        self.requeued = self._counter(
            "fractune_work_requeued",
            "Work that went back to its queue, by what became of its worker.",
            "kind",
            "reason",
        )
        self.given_up = self._counter("fractune_work_given_up", "Work that no worker could do.", "kind")
        self.audit_failures = self._counter("fractune_audit_failures", "Calls that the audit lacks.")
        method = "grpc_type", "grpc_service", "grpc_method"
        self.calls_started = self._counter("grpc_server_started", "Calls that have begun.", *method)
        self.calls_handled = self._counter("grpc_server_handled", "Calls that have ended.", *method, "grpc_code")
        self.call_duration = Histogram(
            "grpc_server_handling_seconds",
            "How long calls took; those that watch a job, until it ended.",
            method,
            buckets=_CALL_BOUNDS_S,
            registry=self.registry,
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)
