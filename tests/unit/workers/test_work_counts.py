"""What a worker counts while it handles messages, and that what it logs meanwhile names the job and the work."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fractune.cli.logs import LogFormat, LogLevel, set_up_logs
from fractune_core.fleet.messages import BUSY, IDLE
from fractune_core.fleet.redis_names import BUILD_QUEUE
from fractune_core.fleet.signed_messages import seal_work
from fractune_core.fleet.worker_entries import (
    COUNT,
    GATE_WAIT,
    REMEASURED,
    SCHEDULE_TO_START,
    SUM,
    WORK_DURATION,
    CountKey,
)
from fractune_workers.context import WorkCounts, WorkerContext
from fractune_workers.entry import WorkHandler
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.fleet_messages import BUILD, worker_info
from tests.support.secret import SECRET

WORK = replace(BUILD, work_id="w1", job="j1")


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
    handler.handle("w1", seal_work(SECRET, BUILD_QUEUE, WORK))
    handler.handle("w2", "forged")
    logging.getLogger("fractune_workers").info("between two")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line.get("job"), line.get("work")) for line in lines] == [("j1", "w1")] * 2 + [(None, "w2"), (None, None)]
    assert lines[0]["message"] == "deep inside build"
    state, counts = told(context.counts)
    assert state == IDLE
    assert sum(count for key, count in counts.items() if key.name == WORK_DURATION and key.field != SUM) == 1
