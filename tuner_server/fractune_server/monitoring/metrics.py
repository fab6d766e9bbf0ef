"""Metrics that are read at each scrape: jobs and records from the store, waiting work from Redis, the workers' counts.

A scrape takes two reads of the store and three round trips to Redis, however many workers there are, because the engine
reads their entries once a second. Parts that cannot be read are left out, and `fractune_healthy` shows why.

The HTTP port has /metrics for Prometheus, /healthz and /readyz for Kubernetes and the like.
"""

import dataclasses
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import redis
from prometheus_client import make_wsgi_app
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from fractune_core import __version__
from fractune_core.access import Scope
from fractune_core.errors import AccessRefused, BadRequest, FractuneError, ScopeMissing, StateUnusable, TooManyAttempts
from fractune_core.fleet import redis_state
from fractune_core.fleet.redis_names import PROTOCOL
from fractune_core.fleet.redis_state import COUNT, SUM, CountKey
from fractune_core.jobs import JobState
from fractune_core.names import DEFAULT_TENANT, HealthPart
from fractune_server.authenticator import ANYBODY, Authenticator, Caller
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


_SILENT_CLIENT_S = 10.0
_STATUS: dict[type[FractuneError], str] = {ScopeMissing: "403 Forbidden", TooManyAttempts: "429 Too Many Requests"}
"""HTTP's status lines"""

_log = logging.getLogger(__name__)


class Endpoint:
    """The constructor binds the address; `start` serves until `stop`."""

    def __init__(
        self,
        address: str,
        metrics: Metrics,
        health: Health,
        tls: ssl.SSLContext | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        """`address` is HOST:PORT, port 0 = any free one. Raises BadRequest when it cannot be bound.

        With `tls` it is HTTPS. With `authenticator` metrics need a token with the scope `read`. Health needs none.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        server: type[_Server] = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, int(port), _app(metrics, health, authenticator), server, _Handler)
        except (OSError, ValueError, OverflowError) as error:
            raise BadRequest(
                f"--metrics {address}: cannot listen there ({error}); write HOST:PORT with a free port of this machine"
            ) from error
        if tls is not None:
            # The handshake happens at the first read, not at accept, where one silent caller would block all others.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"
        self.url = f"http{'' if tls is None else 's'}://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """May be called without a start."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  as the library calls it
        """A client that is silent for long, or leaves early, is not an error of the server."""
        _log.debug("a call of %s at the port for metrics failed", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the library's names
        """Log no line for each probe."""


def _app(
    metrics: Metrics, health: Health, authenticator: Authenticator | None
) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        failing = health.failing()
        match environ["PATH_INFO"]:
            case "/metrics":
                try:
                    caller = ANYBODY if authenticator is None else _admitted(authenticator, environ)
                    found = metrics.of(caller.tenant_seen)
                except AccessRefused as error:
                    return _plain(start_response, _STATUS.get(type(error), "401 Unauthorized"), f"{error}\n")
                except StateUnusable:
                    return _answer(start_response, [HealthPart.STORE])
                answer: Iterable[bytes] = make_wsgi_app(found)(environ, start_response)
                return answer
            case "/healthz":
                return _answer(start_response, [part for part in failing if part is HealthPart.ENGINE])
            case "/readyz":
                return _answer(start_response, list(failing))
        return _plain(start_response, "404 Not Found", "/metrics, /healthz and /readyz are here\n")

    return app


def _admitted(authenticator: Authenticator, environ: dict[str, Any]) -> Caller:
    """Raises AccessRefused for a caller who may not read metrics."""
    metadata = {"authorization": environ.get("HTTP_AUTHORIZATION", "")}
    host = environ["REMOTE_ADDR"]
    peer = f"ipv6:[{host}]:0" if ":" in host else f"ipv4:{host}:0"  # as gRPC names it: one count of wrong tokens
    return authenticator.admit("/metrics", Scope.READ, peer, metadata)


def _answer(start_response: Any, failing: list[HealthPart]) -> list[bytes]:
    """The names of the failing parts; the reasons are only in the server's log."""
    if failing:
        return _plain(start_response, "503 Service Unavailable", f"failing: {', '.join(sorted(failing))}\n")
    return _plain(start_response, "200 OK", "ok\n")


def _plain(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))])
    return [text.encode()]
