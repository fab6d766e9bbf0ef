"""Real compile workers and models that cost too much: these are refused, and others are read meanwhile."""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from fractune.local.stack import StackOptions, running_stack
from fractune.server.rpc import RpcClient
from fractune_core.fleet.blobs import put_blob
from fractune_core.fleet.redis_names import COMPILE_QUEUE, SERVER_STREAM, model_blob
from fractune_core.fleet.redis_state import CANCELLED, mark
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.constant_modules import module, tensor
from tests.support.fleet_messages import ingest_work
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import write_model
from tests.support.processes.redis_process import events_of, pieces_of, running_redis, wait_until
from tests.support.processes.worker_processes import WorkerProcess, alive, worker
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)

_WITH_HOSTILE_CHILD = f"""
import os
os.environ["PYTHONPATH"] = {str(REPOSITORY)!r}
from fractune_core.host import machine
from fractune_workers.roles import compile as compile_role
compile_role._CHILD = "tests.support.children.hostile_module"
machine.usable_memory_bytes = lambda: 512 << 20
"""


class Reading:
    """A real compile worker, whose child does what a model's name says."""

    def __init__(self, url: str, process: WorkerProcess, gate: Path) -> None:
        self.gate = gate
        self.redis = redis.Redis.from_url(url)
        self.process = process
        process.info(self.redis)

    def ask(self, name: str, owner: str = "", contents: bytes = b"") -> None:
        """To read a model; the job is called as it is."""
        contents = contents or name.encode()
        digest = hashlib.sha256(contents).hexdigest()
        put_blob(self.redis, model_blob("default", digest), contents)
        work = ingest_work(digest, work_id=f"work-{name}", job=name, model_name=f"{name}.onnx", owner=owner)
        WorkQueues(self.redis, SECRET).enqueue(COMPILE_QUEUE, work)

    def events(self, job: str) -> list[dict[str, Any]]:
        """What came of a job, once its work has ended."""
        wait_until(lambda: any(piece.job == job for piece in pieces_of(self.redis)), 60)
        return [event for event in events_of(self.redis, SERVER_STREAM) if event["job"] == job]

    def child(self) -> int:
        """Process id of the child that has read the last model."""
        (child,) = self.process.children()
        return child


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    gate = tmp_path / "gate"
    with running_redis() as url, worker("w", "compile", url, gate, before=_WITH_HOSTILE_CHILD) as process:
        yield Reading(url, process, gate)


@pytest.mark.parametrize("name", ["greedy", "abort"])
def test_a_model_that_takes_too_much_memory_is_refused_and_not_read_again(reading: Reading, name: str) -> None:
    reading.ask(name)
    (failed,) = reading.events(name)
    assert (failed["event"], failed["error"]) == ("work_failed", "BadModel")
    assert failed["message"] == (
        f"{name}.onnx could not be read: it takes more than 0.5 GiB of memory; make it smaller, or start "
        "workers with a larger --max-model-memory"
    )
    reading.ask("small")
    assert reading.events("small")[0]["event"] == "ingested"
    reading.process.stop()
    assert reading.process.log.count(f"reading {name}") == 1


def test_the_child_of_a_cancelled_job_is_ended(reading: Reading) -> None:
    reading.ask("endless")
    wait_until(reading.process.children, 60)
    (child,) = reading.process.children()
    mark(reading.redis, CANCELLED, "endless")
    assert not reading.events("endless")
    assert not alive(child)
    reading.ask("small")
    assert reading.events("small")[0]["event"] == "ingested"


def test_a_model_of_another_owner_is_read_by_another_process(reading: Reading) -> None:
    """Which cannot open the files of the first owner's models either: they are gone."""
    children = []
    for name, owner in [("a1", "alice"), ("a2", "alice"), ("b1", "bob"), ("a3", "alice")]:
        reading.ask(name, owner)
        assert reading.events(name)[0]["event"] == "ingested"
        children.append(reading.child())
    a1, a2, b1, a3 = children
    assert a1 == a2
    assert len({a2, b1, a3}) == 3
    assert not any(map(alive, (a1, b1)))


def test_a_short_tensor_shows_no_weights_of_the_model_before(tmp_path: Path) -> None:
    """A real child reads both, for one owner: it may have the first model's weights in its memory."""
    secret = np.full((4, 8), 1234.5, "float32")
    with running_redis() as url, worker("w", "compile", url, tmp_path / "gate") as process:
        reading = Reading(url, process, tmp_path / "gate")
        reading.ask("whole", contents=json.dumps(module(tensor(data=secret.tobytes()))).encode())
        assert reading.events("whole")[0]["event"] == "ingested"
        reading.ask("short", contents=json.dumps(module(tensor(data=secret.tobytes()[:4], stated=128))).encode())
        (failed,) = reading.events("short")
    assert (failed["event"], failed["error"]) == ("work_failed", "BadModel")
    assert failed["message"] == (
        "short.onnx: tensor 0 is a tensor of shape [4, 8], which needs 128 bytes, and the file has 4 for it; export "
        "the model again"
    )


@pytest.mark.long
def test_a_measurement_does_not_wait_for_a_model_that_takes_long(reading: Reading) -> None:
    def measure() -> None:
        with CoreLocks(reading.gate).measuring(sorted(os.sched_getaffinity(0))):
            pass

    reading.ask("endless")
    wait_until(reading.process.children, 60)
    thread = threading.Thread(target=measure)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    mark(reading.redis, CANCELLED, "endless")


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


@pytest.mark.long
def test_a_model_that_takes_long_keeps_no_other_one_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setenv("TMPDIR", str(locks))  # what other stacks of this host measure is no matter here
    slow, other = write_model(tmp_path / "slow.onnx"), write_model(tmp_path / "other.onnx", channels=4)
    options = StackOptions(tmp_path / "state", ("cpu:1",), compile=True, listen=f"unix:{tmp_path / 'server'}")
    with running_stack(options) as stack, RpcClient(stack.own_address) as client:
        readers = [each.pid for each in client.workers() if each.role == "compile"]
        assert len(readers) == 2
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(matched(stack.own_address, slow)))
        thread.start()
        wait_until(lambda: any(map(children_of, readers)), 60)
        (child,) = (child for pid in readers for child in children_of(pid))
        os.kill(child, signal.SIGSTOP)
        try:
            matched(stack.own_address, other)
            assert not answers
        finally:
            os.kill(child, signal.SIGCONT)
        thread.join(60)
        assert answers


def matched(address: str, model: Path) -> Any:
    with RpcClient(address) as client:
        sent = client.upload_model(model)
        return client.match_model(pb.MatchModelRequest(model=sent.name, share="cpu:1"))
