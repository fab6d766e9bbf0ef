"""Whether the server says that it is healthy when it is, and only then; what a scrape tells, and what it costs."""

import contextlib
import logging
import re
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import redis
from grpc_health.v1 import health_pb2
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis.connection import AbstractConnection
from sqlalchemy import event

from fractune_core.errors import BadRequest
from fractune_core.fleet import messages, redis_names
from fractune_core.fleet.messages import WORK_KINDS, BuildWork
from fractune_core.names import HealthPart
from fractune_server.monitoring.health import SILENCE_S, Health
from fractune_server.monitoring.metrics import Endpoint, Metrics, ServerCollector
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.store import Store
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import live_workers
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import BUILD, worker_info
from tests.support.paths import REPOSITORY
from tests.support.processes.fleet_simulated import SimulatedWorker
from tests.support.processes.made_up import DEVICE
from tests.support.processes.redis_process import running_redis
from tests.support.samples import validation
from tests.support.secret import SECRET
from tests.support.store_contract import make_tables

REDIS_ROUND_TRIPS, SQL_QUERIES = 3, 2


def scrape(context: ServerContext) -> str:
    registry = context.instruments.registry
    collector = ServerCollector(context, Health(context, lambda: 0.0))
    registry.register(collector)
    text = generate_latest(registry).decode()
    registry.unregister(collector)
    return text


def samples(context: ServerContext) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name, and the values of the labels in the order of the labels' names."""
    families = text_string_to_metric_families(scrape(context))
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def register(context: ServerContext, count: int, role: str, share: str = "") -> None:
    """Entries of workers that each did one piece of work and measured one batch again; the server reads them."""
    for _ in range(count):
        worker = SimulatedWorker("redis://", role, f"{role}-{uuid.uuid4().hex}", share)
        worker.redis.close()
        worker.redis, worker.started_at = context.redis, time.time()
        worker.counts.begin("measure", 0.02)
        worker.counts.end("measure", 2.0, 0.5)
        worker.counts.add("remeasured", "cpu:1")
        worker.register()
    context.instruments.workers.take(live_workers(context.redis, SECRET).workers.values())


def work(number: int) -> BuildWork:
    return replace(BUILD, work_id=f"w{number}-{uuid.uuid4().hex}")


def test_what_the_server_knows(context: ServerContext) -> None:
    context.store.log.add([validation("a", 1, 1.0), validation("b", 1, 1.0)])
    queues = WorkQueues(context.redis, SECRET)
    for number in range(3):
        queues.enqueue(redis_names.BUILD_QUEUE, work(number))
    queues.enqueue(redis_names.measure_queue(DEVICE.key, "cpu:2"), work(3))
    register(context, 2, "measure", "cpu:1")
    register(context, 1, "build")
    found = samples(context)
    assert found["fractune_healthy", ("engine",)] == 1
    assert found["fractune_jobs", ("done",)] == 0
    assert found["fractune_records_total", ("validation", "cpu:1", "ok")] == 2
    assert found["fractune_work_waiting", ("build", "")] == 3
    assert found["fractune_work_waiting", ("measure", "cpu:2")] == 1
    assert 0 <= found["fractune_work_waiting_oldest_age_seconds", ("build", "")] < 60
    assert found["fractune_results_unreadable", ()] == 0
    assert found["fractune_workers", ("measure", "cpu:1", "idle")] == 2
    assert found["fractune_work_duration_seconds_bucket", ("measure", "1.0")] == 0
    assert found["fractune_work_duration_seconds_bucket", ("measure", "2.5")] == 3
    assert found["fractune_work_duration_seconds_bucket", ("measure", "+Inf")] == 3
    assert found["fractune_work_duration_seconds_count", ("measure",)] == 3
    assert found["fractune_work_duration_seconds_sum", ("measure",)] == pytest.approx(4.5)
    assert found["fractune_work_gate_wait_seconds_sum", ("measure",)] == pytest.approx(1.5)
    assert found["fractune_work_schedule_to_start_seconds_bucket", ("measure", "0.025")] == 3
    assert found["fractune_batches_remeasured_total", ("cpu:1",)] == 3
    assert found["fractune_fault_epochs_total", ()] == 0


def test_buckets_of_another_version_stay_where_they_were(context: ServerContext) -> None:
    counts = [("work_duration", "build", "0.7", 2.0), ("work_duration", "build", "0.5", 1.0)]
    context.instruments.workers.take([replace(worker_info("n", 1.0), counts=counts)])
    found = samples(context)
    buckets = [found["fractune_work_duration_seconds_bucket", ("build", bound)] for bound in ("0.5", "0.7", "1.0")]
    assert buckets == [1, 3, 3]


def test_what_others_write_into_redis_does_not_end_a_scrape(context: ServerContext) -> None:
    context.redis.sadd("rq:queues", f"rq:queue:{redis_names.BUILD_QUEUE}")
    context.redis.rpush(f"rq:queue:{redis_names.BUILD_QUEUE}", b"\xff")
    context.redis.hset("rq:job:\ufffd", "enqueued_at", "yesterday")
    found = samples(context)
    assert found["fractune_work_waiting", ("build", "")] == 1
    assert found["fractune_work_waiting_oldest_age_seconds", ("build", "")] == 0


def test_a_scrape_without_redis_tells_the_rest(tmp_path: Path, store: Store) -> None:
    with redis.Redis.from_url(f"unix://{tmp_path / 'none'}", retry=None) as connection:
        context = ServerContext(store, connection, BlobStore(tmp_path), SECRET)
        health = Health(context, lambda: None)
        health.look()
        assert set(health.failing()) == {"redis", "engine"}
        context.instruments.registry.register(ServerCollector(context, health))
        text = generate_latest(context.instruments.registry).decode()
    assert 'fractune_healthy{part="redis"} 0.0' in text
    assert 'fractune_healthy{part="store"} 1.0' in text
    assert 'fractune_jobs{state="queued"} 0.0' in text
    assert "fractune_work_waiting" not in text
    assert "fractune_workers" not in text


def test_a_scrape_costs_the_same_however_many_workers_there_are(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(context, 1, "measure", "cpu:1")
    (entry,) = live_workers(context.redis, SECRET).workers.values()
    context.instruments.workers.take(replace(entry, name=f"measure-{number}") for number in range(1_000))
    WorkQueues(context.redis, SECRET).enqueue(redis_names.BUILD_QUEUE, work(0))
    sent: list[object] = []
    send: Any = AbstractConnection.send_packed_command

    def counted(self: AbstractConnection, command: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(command)
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)
    queries: list[str] = []
    event.listen(context.store.engine, "before_cursor_execute", lambda *told: queries.append(told[2]))
    found = samples(context)
    assert found["fractune_workers", ("measure", "cpu:1", "idle")] == 1_000
    assert found["fractune_work_duration_seconds_count", ("measure",)] == 1_001
    assert (len(sent), len(queries)) == (REDIS_ROUND_TRIPS, SQL_QUERIES)
    assert len(found) < 1_000  # no series for a worker, a job or an operator


def test_every_metric_is_in_the_table_of_the_docs(context: ServerContext) -> None:
    """By name and type, both ways."""
    rows = re.findall(r"^\| `((?:fractune|grpc)_\w+)`[^|]* \| (\w+)", page("docs/operations.md"), re.MULTILINE)
    register(context, 1, "build")
    types = re.findall(r"^# TYPE (\w+) (\w+)$", scrape(context), re.MULTILINE)
    assert sorted(rows) == sorted(types)


def test_alerts_look_at_metrics_that_there_are(context: ServerContext) -> None:
    register(context, 1, "build")
    names = set(re.findall(r"^# TYPE (\w+)", scrape(context), re.MULTILINE))
    used = re.findall(r"\b((?:fractune|grpc)_[a-z_]+)\b", page("deploy/alerts.yml"))
    assert used
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= names


def page(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def test_the_kinds_of_work_are_those_of_the_messages() -> None:
    kinds = {get_args(get_type_hints(each)["task"])[0] for each in get_args(messages.Work)}
    assert kinds == set(WORK_KINDS)


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
OURS = "fractune.v1.JobService"


class Parts:
    """A store, a Redis and an engine that can be made to fail."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.engine_silent_s: float | None = 0.1
        self.health = Health(context, lambda: self.engine_silent_s)
        self.health.servicer.expect([OURS])

    def says(self, service: str) -> Any:
        return self.health.servicer.Check(health_pb2.HealthCheckRequest(service=service), None).status

    def break_store(self) -> None:
        engine = self.context.store.engine

        @event.listens_for(engine, "connect")
        def _read_only(connection: Any, _: object) -> None:
            connection.execute("PRAGMA query_only=1")

        self.context.store.close()


@contextlib.contextmanager
def running_parts(url: str, folder: Path) -> Iterator[Parts]:
    store = Store(make_tables(folder))
    with redis.Redis.from_url(url, retry=None) as connection:
        yield Parts(ServerContext(store, connection, BlobStore(folder), SECRET))
    store.close()


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with running_redis() as url, running_parts(url, tmp_path) as parts:
        yield parts


def test_before_it_serves_it_says_no(parts: Parts) -> None:
    parts.health.look()
    assert parts.says("") == parts.says(OURS) == NOT_SERVING
    parts.health.servicer.serve([OURS])
    assert {parts.says(name) for name in ("", OURS, *HealthPart)} == {SERVING}


def test_a_store_that_takes_no_writes_is_named_alone(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    parts.health.servicer.serve([OURS])
    parts.break_store()
    with caplog.at_level(logging.WARNING):
        parts.health.look()
        parts.health.look()
    assert set(parts.health.failing()) == {HealthPart.STORE}
    assert parts.says("") == parts.says(OURS) == parts.says("store") == NOT_SERVING
    assert parts.says("engine") == parts.says("redis") == SERVING
    assert caplog.text.count("not ready: store: database") == 1


def test_redis_goes_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as held:
        with running_redis() as url:
            parts = held.enter_context(running_parts(url, tmp_path))
            parts.health.servicer.serve([OURS])
            assert parts.says("") == SERVING
        parts.health.look()
        assert set(parts.health.failing()) == {HealthPart.REDIS}
        assert parts.says("") == parts.says("redis") == NOT_SERVING
        with running_redis() as again, redis.Redis.from_url(again) as connection, caplog.at_level(logging.INFO):
            parts.context.redis.connection_pool = connection.connection_pool
            parts.health.look()
            assert parts.says("") == SERVING
            assert "ready again: redis" in caplog.text


@pytest.mark.parametrize("silent_s", [None, SILENCE_S + 1])
def test_an_engine_that_has_ended_or_hangs_is_seen_without_a_look(parts: Parts, silent_s: float | None) -> None:
    parts.health.look()
    parts.health.servicer.serve([OURS])
    assert parts.says("engine") == SERVING
    parts.engine_silent_s = silent_s
    assert parts.says("engine") == parts.says("") == NOT_SERVING


def test_a_look_that_hangs_is_no_health(parts: Parts) -> None:
    parts.health.look()
    parts.health._looked_at -= SILENCE_S + 1
    assert set(parts.health.failing()) == {HealthPart.STORE, HealthPart.REDIS}


# ---- over HTTP


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def endpoint(parts: Parts) -> Iterator[Endpoint]:
    parts.health.look()
    endpoint = Endpoint("127.0.0.1:0", Metrics(parts.context.instruments.registry, parts.context), parts.health)
    endpoint.start()
    yield endpoint
    endpoint.stop()


def test_the_paths(parts: Parts, endpoint: Endpoint) -> None:
    assert get(endpoint.address, "/healthz") == (200, "ok\n")
    assert get(endpoint.address, "/readyz") == (200, "ok\n")
    code, text = get(endpoint.address, "/metrics")
    assert code == 200
    assert "# TYPE fractune_engine_turn_seconds histogram" in text
    assert get(endpoint.address, "/")[0] == 404
    parts.break_store()
    parts.health.look()
    assert get(endpoint.address, "/healthz") == (200, "ok\n")
    assert get(endpoint.address, "/readyz") == (503, "failing: store\n")  # why: in the log, not for strangers
    parts.engine_silent_s = None
    assert get(endpoint.address, "/healthz") == (503, "failing: engine\n")


def test_an_address_that_is_none_and_a_port_in_use(parts: Parts, endpoint: Endpoint) -> None:
    none = ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "unix:/tmp/x", "nowhere.invalid:0")
    for address in (*none, endpoint.address):
        with pytest.raises(BadRequest, match=f"--metrics {address}: cannot listen there"):
            Endpoint(address, Metrics(parts.context.instruments.registry, parts.context), parts.health)


def test_an_endpoint_that_never_started_stops(parts: Parts) -> None:
    Endpoint("127.0.0.1:0", Metrics(parts.context.instruments.registry, parts.context), parts.health).stop()
