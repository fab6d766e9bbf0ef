"""A real worker whose child is killed from outside, for real, goes on: the model is not to blame."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.fleet.blobs import put_blob
from fractune_core.fleet.redis_names import COMPILE_QUEUE, SERVER_STREAM, model_blob
from fractune_server.transport.work_queues import WorkQueues
from tests.support.processes.cli_process import write_model
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.processes.worker_processes import WorkerProcess, worker
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
        put_blob(connection, model_blob(digest), model)
        work: Any = {"do": "ingest", "work_id": "w", "job": "j", "model": digest, "model_name": "small.onnx"}
        work |= {"inputs": {}, "target": "llvm", "isa": ""}
        WorkQueues(connection, SECRET).enqueue(COMPILE_QUEUE, work)
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
