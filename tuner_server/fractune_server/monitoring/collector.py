"""Metrics that are read at each scrape: jobs and records from the store, waiting work from Redis, the workers' counts.

A scrape takes two reads of the store and three round trips to Redis, however many workers there are, because the engine
reads their entries once a second. Parts that cannot be read are left out, and `fractune_healthy` shows why.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

import redis
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from fractune_core import __version__
from fractune_core.errors import FractuneError
from fractune_core.fleet import redis_state
from fractune_core.fleet.redis_names import PROTOCOL
from fractune_core.fleet.redis_state import COUNT, SUM, CountKey
from fractune_core.jobs import JobState
from fractune_core.names import DEFAULT_TENANT, HealthPart
from fractune_server.monitoring.health import Health
from fractune_server.store.database.sight import Sight
from fractune_server.store.jobs import JobStore
from fractune_server.store.records.log import TuningLog
from fractune_server.store.store import View
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import waiting_work

_DURATIONS = {
    redis_state.SCHEDULE_TO_START: (
        "fractune_work_schedule_to_start_seconds",
        "From the queueing of a piece of work until a worker began it, by the clocks of two hosts.",
    ),
    redis_state.WORK_DURATION: (
        "fractune_work_duration_seconds",
        "How long a piece of work took its worker, without waits for locks.",
    ),
    redis_state.GATE_WAIT: (
        "fractune_work_gate_wait_seconds",
        "How long a piece of work waited for cores or a GPU.",
    ),
}


class ServerCollector(Collector):
    def __init__(self, context: ServerContext, health: Health) -> None:
        self._context = context
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """Raises nothing: a part that fails is left out."""
        store = self._context.store
        jobs, records = partial(_jobs, store.jobs), partial(_records, store.log)
        for read in (_build, self._health_parts, jobs, records, self._waiting, self._workers):
            yield from _unless_it_fails(read)

    def _health_parts(self) -> Iterator[Metric]:
        healthy = GaugeMetricFamily("fractune_healthy", "1 when this part of the server works.", labels=["part"])
        failing = self._health.failing()
        for part in HealthPart:
            healthy.add_metric([part.value], part not in failing)
        yield healthy

    def _waiting(self) -> Iterator[Metric]:
        labels = ["role", "share"]
        depth = GaugeMetricFamily("fractune_work_waiting", "Work in the queues of a role.", labels=labels)
        age = GaugeMetricFamily(
            "fractune_work_waiting_oldest_age_seconds", "Since the oldest of it was queued.", labels=labels
        )
        found, now = waiting_work(self._context.redis), time.time()
        for key, waiting in sorted(found.by_role_and_share.items()):
            depth.add_metric(key, waiting.depth)
            age.add_metric(key, 0.0 if waiting.oldest_at is None else max(0.0, now - waiting.oldest_at))
        yield depth
        yield age
        yield GaugeMetricFamily(
            "fractune_results_unreadable", "Results that are kept because they cannot be read.", value=found.unreadable
        )

    def _workers(self) -> Iterator[Metric]:
        totals = self._context.instruments.workers
        live = totals.live()
        if live is not None:
            workers = GaugeMetricFamily("fractune_workers", "Live workers.", labels=["role", "share", "state"])
            for group, count in sorted(live.items()):
                workers.add_metric(list(group), count)
            yield workers
        counts = totals.totals()
        for name, (metric, meaning) in _DURATIONS.items():
            yield _histogram(metric, meaning, _of(counts, name))
        remeasured = CounterMetricFamily(
            "fractune_batches_remeasured", "Batches measured again: the machine had changed.", labels=["share"]
        )
        for share, fields in sorted(_of(counts, redis_state.REMEASURED).items()):
            remeasured.add_metric([share], fields[COUNT])
        yield remeasured
        epochs = _of(counts, redis_state.FAULT_EPOCHS).get("", {})
        yield CounterMetricFamily(
            "fractune_fault_epochs",
            "GPUs opened again after a fault that their clients had shared.",
            value=epochs.get(COUNT, 0.0),
        )


class TenantCollector(Collector):
    """What a tenant may know: its own jobs, records, usage and limits."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Raises nothing: a part that fails is left out."""
        view = self._view
        for read in (_build, partial(_jobs, view.jobs), partial(_records, view.log), self._usage):
            yield from _unless_it_fails(read)

    def _usage(self) -> Iterator[Metric]:
        used = GaugeMetricFamily("fractune_tenant_used", "What the tenant uses.", labels=["quota"])
        limits = GaugeMetricFamily("fractune_tenant_limit", "The tenant's limits, if any.", labels=["quota"])
        usage, quotas = self._view.usage.of_tenant(), self._view.usage.limits()
        for field in dataclasses.fields(quotas):
            used.add_metric([field.name], getattr(usage, field.name))
            limit = getattr(quotas, field.name)
            if limit is not None:
                limits.add_metric([field.name], limit)
        yield used
        yield limits


class Metrics:
    """The metrics that a caller may read."""

    def __init__(self, whole: CollectorRegistry, context: ServerContext) -> None:
        """`whole`: of the server."""
        self._whole = whole
        self._context = context

    def of(self, tenant: str | None) -> CollectorRegistry:
        """Of one who sees this tenant; None = of all tenants. Raises StateUnusable."""
        if self._context.sees_fleet(tenant):
            return self._whole
        registry = CollectorRegistry()
        registry.register(TenantCollector(self._context.view(Sight(tenant, tenant or DEFAULT_TENANT))))
        return registry


def _build() -> Iterator[Metric]:
    build = GaugeMetricFamily("fractune_build_info", "1, with the versions.", labels=["version", "protocol"])
    build.add_metric([__version__, str(PROTOCOL)], 1)
    yield build


def _jobs(store: JobStore) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("fractune_jobs", "Jobs, ended ones too.", labels=["state"])
    counts = store.count_by_state()
    for state in JobState:
        jobs.add_metric([state.value], counts.get(state, 0))
    yield jobs


def _records(log: TuningLog) -> Iterator[Metric]:
    records = CounterMetricFamily(
        "fractune_records", "Records that the log has taken in.", labels=["share", "kind", "status"]
    )
    for group, count in sorted(log.totals().items()):
        records.add_metric(list(group), count)
    yield records


def _unless_it_fails(read: Callable[[], Iterator[Metric]]) -> Iterator[Metric]:
    try:
        yield from read()
    except (FractuneError, redis.RedisError):
        return


def _of(counts: dict[CountKey, float], name: str) -> dict[str, dict[str, float]]:
    """Counts of this name, by label, then by field."""
    found: dict[str, dict[str, float]] = {}
    for key, count in counts.items():
        if key.name == name:
            found.setdefault(key.label, {})[key.field] = count
    return found


def _histogram(name: str, meaning: str, by_kind: dict[str, dict[str, float]]) -> Metric:
    family = HistogramMetricFamily(name, meaning, labels=["kind"])
    for kind, fields in sorted(by_kind.items()):
        # Workers of another version may have other bounds: a bucket holds the counts up to its own bound.
        bounds = sorted(float(field) for field in {*fields, *map(str, redis_state.SECS_BOUNDS)} - {SUM})
        below = accumulate(fields.get(str(bound), 0.0) for bound in bounds)
        buckets = [
            ("+Inf" if bound == math.inf else str(bound), count) for bound, count in zip(bounds, below, strict=True)
        ]
        family.add_metric([kind], buckets, fields.get(SUM, 0.0))
    return family
