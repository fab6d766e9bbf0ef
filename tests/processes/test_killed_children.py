"""A real worker whose child is killed from outside, for real, goes on: the model is not to blame."""

import hashlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.fleet.blobs import put_blob, put_signed_blob
from fractune_core.fleet.messages import CandidateItem, SearchOpening
from fractune_core.fleet.redis_names import (
    BUILD_QUEUE,
    COMPILE_QUEUE,
    SERVER_STREAM,
    model_blob,
    tune_queue,
    tuner_stream,
    workload_blob,
)
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import build_work, ingest_work, operator_of, search_work
from tests.support.processes.cli_process import write_model
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.processes.worker_processes import WorkerProcess, matmul_workload, worker
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)


def kill_next_child(process: WorkerProcess, before: set[int]) -> None:
    """Kill the next child of the worker that is none of `before`, and note it there."""
    wait_until(lambda: set(process.children()) - before, 60)
    (child,) = set(process.children()) - before
    os.kill(child, signal.SIGKILL)
    before.add(child)


@pytest.mark.parametrize(("kills", "event"), [(2, "ingested"), pytest.param(3, "work_failed", marks=pytest.mark.long)])
def test_a_model_is_read_though_the_child_that_reads_it_is_killed(tmp_path: Path, kills: int, event: str) -> None:
    model = write_model(tmp_path / "small.onnx").read_bytes()
    digest = hashlib.sha256(model).hexdigest()
    with running_redis() as url, worker("compiler", "compile", url, tmp_path / "gate") as process:
        connection = redis.Redis.from_url(url)
        process.info(connection)
        put_blob(connection, model_blob("default", digest), model)
        WorkQueues(connection, SECRET).enqueue(COMPILE_QUEUE, ingest_work(digest))
        killed = set[int]()
        for _ in range(kills):
            kill_next_child(process, killed)
        wait_until(lambda: events_of(connection, SERVER_STREAM), 120)
        (found,) = events_of(connection, SERVER_STREAM)
    assert found["event"] == event, found
    if event == "work_failed":
        assert found["message"].startswith(
            "small.onnx could not be read: the child was killed by SIGKILL, 3 times in a row; is this machine out of"
        )


class Searching:
    """A real tuner, its child loaded, that is asked for candidates of one operator."""

    def __init__(self, url: str, process: WorkerProcess) -> None:
        self.redis = redis.Redis.from_url(url)
        self.process = process
        self.workload = matmul_workload(64)
        put_signed_blob(self.redis, SECRET, workload_blob(self.workload["hash"]), self.workload["json"].encode())
        self.process.info(self.redis)
        wait_until(self.process.children, 60)
        self._answers = 0

    @property
    def child(self) -> int:
        (child,) = self.process.children()
        return child

    def ask(self, opening: SearchOpening | None) -> None:
        name = uuid.uuid4().hex
        work = search_work(operator_of(self.workload), name, work_id=name, job="j", device_key="d", opening=opening)
        WorkQueues(self.redis, SECRET).enqueue(tune_queue("tuner"), work)

    def answer(self) -> dict[str, Any]:
        """What the tuner says to the next work that it was asked."""
        stream = tuner_stream("tuner")
        wait_until(lambda: len(events_of(self.redis, stream)) > self._answers, 120)
        self._answers += 1
        return events_of(self.redis, stream)[self._answers - 1]

    def proposed(self, opening: SearchOpening | None) -> list[str]:
        self.ask(opening)
        answer = self.answer()
        assert answer["event"] == "proposed", answer
        candidates: list[str] = answer["candidates"]
        assert len(candidates) == 4
        return candidates


@pytest.fixture
def searching(tmp_path: Path) -> Iterator[Searching]:
    with running_redis() as url, worker("tuner", "tune", url, tmp_path / "gate") as process:
        yield Searching(url, process)


def opening(*known: str) -> SearchOpening:
    return SearchOpening([], list(known), [])


def test_a_search_that_went_with_its_child_does_not_begin_from_nothing(searching: Searching) -> None:
    first = searching.proposed(opening())
    os.kill(searching.child, signal.SIGKILL)
    searching.ask(None)
    answer = searching.answer()
    assert (answer["event"], answer["job"]) == ("search_forgotten", "j")
    assert not set(first) & set(searching.proposed(opening(*first)))


@pytest.mark.long
def test_a_search_whose_child_is_killed_meanwhile_is_done_again_by_the_next_one(searching: Searching) -> None:
    searching.proposed(opening())  # its child is ready
    child = searching.child
    os.kill(child, signal.SIGSTOP)  # so that it is sure to be asked, and not to answer
    try:
        searching.ask(opening())
        wait_until(lambda: searching.redis.zcard(f"rq:wip:{tune_queue('tuner')}"))
    finally:
        os.kill(child, signal.SIGKILL)
    answer = searching.answer()
    assert (answer["event"], len(answer.get("candidates", []))) == ("proposed", 4), answer
    assert searching.child != child


@pytest.mark.long
def test_what_a_killed_builder_leaves_is_removed_when_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    workload = matmul_workload(64)
    work = build_work(operator_of(workload), [CandidateItem(f"c{place}", "") for place in range(50)])
    with running_redis() as url:
        connection = redis.Redis.from_url(url)
        put_signed_blob(connection, SECRET, workload_blob(workload["hash"]), workload["json"].encode())
        with worker("builder", "build", url, tmp_path / "gate") as process:
            WorkQueues(connection, SECRET).enqueue(BUILD_QUEUE, work)
            wait_until(lambda: _found(files, "tmp*"), 120, every_s=0.001)  # of a candidate that is being built
            process.kill()
            left = set(files.iterdir())
        WorkQueues(connection, SECRET).clear()
        with worker("next", "build", url, tmp_path / "gate"):
            wait_until(lambda: connection.exists("rq:worker:next"), 120)  # its child is ready
            assert left
            assert not left & set(files.iterdir())
        connection.close()


def _found(folder: Path, pattern: str) -> list[Path]:
    """Folders may vanish while they are searched."""
    try:
        return list(folder.rglob(pattern))
    except FileNotFoundError:
        return []
