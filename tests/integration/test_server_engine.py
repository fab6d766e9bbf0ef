"""How the engine ends when it cannot go on: Redis stays away, the disk is full, a mistake of our own."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import event

from fractune_core.errors import FractuneError, RedisGone, StateUnusable
from fractune_core.fleet import redis_names
from fractune_core.fleet.redis_names import tuner_stream
from fractune_core.fleet.signed_messages import seal_event
from fractune_core.jobs import JobSpec, JobState, OperatorTask
from fractune_server.engine.engine import Engine
from fractune_server.engine.ingest import ingest_key
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.jobs import StoredJob
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import IngestedModel, Store, sqlite_url
from fractune_server.transport.context import ServerContext
from tests.support.fleet_messages import CONV2D, measure_work, send_once_more
from tests.support.processes.fleet_simulated import SimulatedWorker
from tests.support.processes.made_up import (
    DEVICE,
    TARGET,
    TARGET_KEY,
    granted,
    made_up_record,
    target_operator,
    workload_hash,
    workload_text,
)
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.secret import SECRET


@pytest.fixture
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
def context(redis_url: str, tmp_path: Path) -> Iterator[ServerContext]:
    store = Store(sqlite_url(tmp_path))
    with redis.Redis.from_url(redis_url, retry=None) as connection:
        yield ServerContext(store, connection, BlobStore(tmp_path), SECRET)
    store.close()


def run_to_its_end(context: ServerContext) -> FractuneError | None:
    ended = threading.Event()
    engine = Engine(context, ended.set, redis_patience_s=0.5)
    engine.start()
    assert ended.wait(30)
    engine.stop()
    return engine.failure


def test_redis_that_stays_away_ends_the_engine(context: ServerContext) -> None:
    context.redis.shutdown(nosave=True)
    failure = run_to_its_end(context)
    assert isinstance(failure, RedisGone)
    assert failure.exit_code == 5
    assert "committed results are kept" in str(failure)


def test_redis_that_stays_out_of_memory_ends_the_engine(context: ServerContext) -> None:
    context.redis.config_set("maxmemory", 1)
    failure = run_to_its_end(context)
    assert isinstance(failure, RedisGone)
    assert "Redis was out of memory for 0.5 s (command not allowed" in str(failure)
    assert str(failure).endswith("give Redis more (maxmemory), and start the server again to continue")


def test_an_engine_outlasts_a_redis_that_is_out_of_memory_for_a_while(
    context: ServerContext, caplog: pytest.LogCaptureFixture
) -> None:
    context.redis.config_set("maxmemory", 1)
    ended = threading.Event()
    engine = Engine(context, ended.set, redis_patience_s=60.0)
    engine.start()
    wait_until(lambda: "Redis is not usable" in caplog.text)
    context.redis.config_set("maxmemory", 0)
    records = [made_up_record(measure_work(CONV2D), f"c{i}", "x") for i in range(3)]
    send_once_more(context.redis, *records)
    wait_until(lambda: context.store.log.count(RecordFilter()) == 3)
    engine.stop()
    assert (engine.failure, ended.is_set()) == (None, True)


def test_a_full_disk_ends_the_engine_and_no_result_is_acknowledged(context: ServerContext) -> None:
    context.store.close()

    @event.listens_for(context.store.engine, "connect")
    def _small(connection: object, _: object) -> None:
        connection.execute("PRAGMA max_page_count=1")  # type: ignore[attr-defined]

    records = [made_up_record(measure_work(CONV2D), f"c{i}", "x" * 10_000) for i in range(100)]
    send_once_more(context.redis, *records)
    failure = run_to_its_end(context)
    assert isinstance(failure, StateUnusable)
    assert "database or disk is full" in str(failure)
    assert context.redis.xpending(redis_names.SERVER_STREAM, redis_names.RECORDER)["pending"] == 100
    assert context.store.log.count(RecordFilter()) == 0
    assert records[0].device == DEVICE


def test_a_mistake_of_our_own_ends_the_engine_with_a_clear_line(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> set[str]:
        raise KeyError("oops")

    monkeypatch.setattr(context.store.jobs, "open_ids", broken)
    failure = run_to_its_end(context)
    assert str(failure) == "the engine ended: KeyError: 'oops'; see the server's log"


def test_a_round_proposed_and_measured_in_one_batch_is_no_empty_round(context: ServerContext, redis_url: str) -> None:
    """A slow server reads a proposal together with all its results: the operator is searched on."""
    spec = JobSpec(model="a" * 64, model_name="m", shares=("cpu:1",), trials=8, round_size=4)
    job = StoredJob("job1", spec, time.time(), DEVICE, {"cpu:1": granted("cpu:1")}, TARGET)
    name = workload_hash("conv2d")
    context.store.log.add_workloads([(name, workload_text("conv2d"))])
    found = IngestedModel(TARGET, TARGET_KEY, [OperatorTask(name, "conv2d", 1)])
    context.store.models.save_ingested(ingest_key(job), found)
    context.store.jobs.create(job)
    tuner = SimulatedWorker(redis_url, "tune", "tune-1")
    tuner.started_at = time.time()
    engine = Engine(context, lambda: None)

    def turned_until_started() -> bool:
        tuner.register()
        engine._tick()
        return bool(context.store.jobs.rounds())

    wait_until(turned_until_started)
    round_id = context.store.jobs.rounds()[0].round_id
    candidates = [f"c{index}" for index in range(4)]
    proposed: Any = {"event": "proposed", "job": "job1", "round_id": round_id, "workload_hash": name}
    proposed |= {"candidates": candidates, "exhausted": False}
    with context.redis.pipeline(transaction=True) as pipe:
        pipe.xadd(tuner_stream("tune-1"), {redis_names.EVENT_FIELD: seal_event(SECRET, proposed)})
        for candidate in candidates:
            record = made_up_record(measure_work(target_operator("conv2d"), (), round_id), candidate, "[]")
            event: Any = {"event": "measured", "job": "job1", "round_id": round_id, "record": record.to_json()}
            pipe.xadd(tuner_stream("tune-1"), {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
        pipe.execute()

    def turned_until_searched_on() -> bool:
        tuner.register()
        engine._tick()
        return [each.round_id for each in context.store.jobs.rounds()] != [round_id]

    wait_until(turned_until_searched_on)
    second = context.store.jobs.rounds()
    assert [(each.asked, each.candidates) for each in second] == [(4, None)]
    assert second[0].round_id != round_id
    assert context.store.jobs.get("job1").state is JobState.TUNING
    tuner.redis.close()
