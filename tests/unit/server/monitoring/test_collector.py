"""What a scrape tells, and what it costs: a real Redis and a real store, and made-up entries of workers."""

import re
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import redis
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis.connection import AbstractConnection
from sqlalchemy import event

from fractune_core.fleet import messages, redis_names
from fractune_core.fleet.messages import WORK_KINDS, BuildWork
from fractune_server.monitoring.health import Health
from fractune_server.monitoring.metrics import ServerCollector
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.store import Store
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import live_workers
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import BUILD, worker_info
from tests.support.paths import REPOSITORY
from tests.support.processes.fleet_simulated import SimulatedWorker
from tests.support.processes.made_up import DEVICE
from tests.support.samples import validation
from tests.support.secret import SECRET

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
