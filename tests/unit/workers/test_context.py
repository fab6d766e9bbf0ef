"""How a worker delivers its results."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from rq.job import Job

from fractune.cli.commands.fleet.launch import LogFormat, LogLevel, set_up_logs
from fractune_core.codec.plain_json import to_dict
from fractune_core.errors import BadModel
from fractune_core.fleet.messages import BUSY, IDLE, WorkFailed
from fractune_core.fleet.redis_names import BUILD_QUEUE, SERVER_STREAM
from fractune_core.fleet.redis_state import (
    COUNT,
    DONE,
    GATE_WAIT,
    REMEASURED,
    SCHEDULE_TO_START,
    SUM,
    WORK_DURATION,
    CountKey,
    is_marked,
)
from fractune_core.fleet.signed_messages import seal_work
from fractune_server.transport.recorder import read_event
from fractune_workers import context as context_module
from fractune_workers.context import Meter, WorkCounts, WorkerContext, cpu_s
from fractune_workers.entry import WorkHandler
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.fleet_messages import BUILD, CONV2D, measure_work, worker_info
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


_BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)\ninput()"


def burn(secs: float) -> None:
    end = time.process_time() + secs
    while time.process_time() < end:
        pass


def test_own_cpu_time_counts_and_idle_time_does_not() -> None:
    meter = Meter(lambda: 0.0)
    burn(0.1)
    first = meter.read()
    assert first.cpu_s >= 0.1
    assert first.worked_s >= 0.1
    time.sleep(0.05)
    assert meter.read().cpu_s < first.cpu_s + 0.04


def test_children_count_while_they_live_and_once_they_are_gone() -> None:
    before = cpu_s()
    command = [sys.executable, "-c", _BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "burnt\n"
        assert cpu_s() - before >= 0.28  # the kernel counts those of living processes in steps of 10 ms
        child.communicate("\n")
    assert cpu_s() - before >= 0.3


def test_waits_for_locks_are_no_work() -> None:
    waits = iter([1.0, 1000.0])
    assert Meter(lambda: next(waits)).read().worked_s == 0.0


COUNTED = replace(BUILD, work_id="w1", job="j1")


def told(counts: WorkCounts) -> tuple[str, dict[CountKey, float]]:
    info = counts.describe(worker_info("w", 1.0))
    assert info.uptime_s >= 0
    return info.state, {CountKey(*key): count for *key, count in info.counts}


def test_a_piece_of_work_is_counted_once_in_each_duration() -> None:
    counts = WorkCounts()
    counts.begin("build", 0.2)
    assert told(counts)[0] == BUSY
    counts.end("build", 3.0, 0.5)
    counts.add(REMEASURED, "cpu:1", 0)
    state, found = told(counts)
    assert state == IDLE
    assert found == {
        (SCHEDULE_TO_START, "build", "0.25"): 1,
        (SCHEDULE_TO_START, "build", SUM): 0.2,
        (WORK_DURATION, "build", "2.5"): 1,
        (WORK_DURATION, "build", SUM): 2.5,
        (GATE_WAIT, "build", "0.5"): 1,
        (GATE_WAIT, "build", SUM): 0.5,
        (REMEASURED, "cpu:1", COUNT): 0,
    }


def test_clocks_that_differ_make_no_negative_wait() -> None:
    counts = WorkCounts()
    counts.begin("build", -7.0)
    assert told(counts)[1] == {(SCHEDULE_TO_START, "build", "0.005"): 1, (SCHEDULE_TO_START, "build", SUM): 0.0}


class Redis:
    """In which no work is marked."""

    def zscore(self, *_: object) -> None:
        return None


class LoggingRole:
    """Logs a line for each piece of work, and nothing else."""

    def queue(self) -> str:
        return BUILD_QUEUE

    def handle(self, work: Any) -> None:
        logging.getLogger("fractune_workers.somewhere").info("deep inside %s", work.task)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[WorkerContext]:
    root, before = logging.getLogger(), (logging.getLogger().handlers[:], logging.getLogger().level)
    context = WorkerContext("w", cast(Any, Redis()), SECRET, CoreLocks(tmp_path / "gate", 1), [0], tmp_path)
    yield context
    root.handlers[:], level = before
    root.setLevel(level)


def test_what_is_logged_during_work_names_the_job_and_the_work(
    context: WorkerContext, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs(LogLevel.INFO, LogFormat.JSON)
    handler = WorkHandler(context, cast(Any, LoggingRole()))
    handler.handle("w1", seal_work(SECRET, BUILD_QUEUE, COUNTED))
    handler.handle("w2", "forged")
    logging.getLogger("fractune_workers").info("between two")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line.get("job"), line.get("work")) for line in lines] == [("j1", "w1")] * 2 + [(None, "w2"), (None, None)]
    assert lines[0]["message"] == "deep inside build"
    state, counts = told(context.counts)
    assert state == IDLE
    assert sum(count for key, count in counts.items() if key.name == WORK_DURATION and key.field != SUM) == 1
