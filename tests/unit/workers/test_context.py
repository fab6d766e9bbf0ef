"""How a worker delivers its results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from rq.job import Job

from fractune_core.codec.plain_json import to_dict
from fractune_core.errors import BadModel
from fractune_core.fleet.marks import DONE, is_marked
from fractune_core.fleet.messages import WorkFailed
from fractune_core.fleet.redis_names import SERVER_STREAM
from fractune_server.transport.recorder import read_event
from fractune_workers import context as context_module
from fractune_workers.context import WorkerContext
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.fleet_messages import CONV2D, measure_work
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.secret import SECRET

WORK = measure_work(CONV2D, work_id="w", job="j")
FAILED = WorkFailed(job="j", task="measure", error="FractuneError", message="m")


@pytest.fixture
def connection() -> Iterator[redis.Redis]:
    with running_redis() as url, redis.Redis.from_url(url) as found:
        yield found


def context_of(connection: redis.Redis, folder: Path) -> WorkerContext:
    return WorkerContext("m", connection, SECRET, CoreLocks(folder / "gate", 8), [0], folder)


def test_results_wait_for_a_redis_that_is_out_of_memory_and_come_once(
    connection: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "_MEMORY_LOOK_EVERY_S", 0.01)
    transaction = context_of(connection, tmp_path).transaction(WORK)
    transaction.events(SERVER_STREAM, [FAILED, FAILED])
    connection.config_set("maxmemory", 1)
    sender = threading.Thread(target=transaction.send)
    sender.start()
    wait_until(lambda: caplog.text.count("measure waits with its results") >= 3)
    assert events_of(connection, SERVER_STREAM) == []
    connection.config_set("maxmemory", 0)
    sender.join(30)
    assert events_of(connection, SERVER_STREAM) == [to_dict(FAILED)] * 2
    assert is_marked(connection, DONE, "w")


def test_a_worker_does_not_wait_for_memory_for_ever(
    connection: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "_MEMORY_PATIENCE_S", 0.0)
    transaction = context_of(connection, tmp_path).transaction(WORK)
    transaction.event(SERVER_STREAM, FAILED)
    connection.config_set("maxmemory", 1)
    with pytest.raises(redis.OutOfMemoryError):
        transaction.send()


def test_work_that_two_workers_do_is_delivered_once(
    connection: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (context_of(connection, tmp_path).transaction(WORK) for _ in range(2))
    for transaction in (first, second):
        transaction.event(SERVER_STREAM, FAILED)
        transaction.send()
    assert events_of(connection, SERVER_STREAM) == [to_dict(FAILED)]
    assert "measure w was delivered by another worker" in caplog.text


def test_of_two_workers_that_deliver_at_once_one_does(
    connection: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second looks whether the work was delivered just before the first delivers it."""
    first, second = (context_of(connection, tmp_path).transaction(WORK) for _ in range(2))
    for transaction in (first, second):
        transaction.event(SERVER_STREAM, FAILED)
    connection.hset(Job.key_for("w"), "status", "started")

    def look(pipe: Any, kind: str, name: str) -> bool:
        found = is_marked(pipe, kind, name)
        monkeypatch.setattr(context_module, "is_marked", is_marked)
        first.send()
        return found

    monkeypatch.setattr(context_module, "is_marked", look)
    second.send()
    assert events_of(connection, SERVER_STREAM) == [to_dict(FAILED)]


def test_a_result_beyond_the_limit_is_not_sent(
    connection: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune_core.fleet.messages.MOST_EVENT_BYTES", 1000)
    transaction = context_of(connection, tmp_path).transaction(WORK)
    transaction.event(SERVER_STREAM, FAILED)
    large = replace(FAILED, message="m" * 900)
    with pytest.raises(BadModel, match=r"^the result \(work_failed\) has 1,[0-9]+ bytes, and 1,000 is the limit"):
        transaction.event(SERVER_STREAM, large)
    transaction.send()
    assert events_of(connection, SERVER_STREAM) == [to_dict(FAILED)]


def test_a_failure_of_any_message_can_be_read(connection: redis.Redis, tmp_path: Path) -> None:
    failed = context_of(connection, tmp_path).transaction(WORK).failure("BadModel", "nu\0l, half \ud800 " + "m" * 5_000)
    assert read_event(to_dict(failed)).event == failed
    assert failed.message.startswith("nu\\x00l, half \\ud800 mmm")
    assert len(failed.message) == 2_000
