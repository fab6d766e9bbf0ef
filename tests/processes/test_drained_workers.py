"""A drain is not a death: a real worker that is told to stop, and killed before it is ready to, hands its work back."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.fleet.blobs import put_signed_blob
from fractune_core.fleet.messages import CandidateItem, Work
from fractune_core.fleet.redis_names import BUILD_QUEUE, measure_queue, workload_blob
from fractune_core.fleet.redis_state import HANDED_BACK, is_marked, worker_key
from fractune_core.fleet.signed_messages import open_work
from fractune_core.records import UNTUNED, ArtifactItem, candidate_id
from fractune_server.transport.live_workers import live_workers
from fractune_server.transport.requeue import ATTEMPTS, Requeuer
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.fleet_messages import build_work, operator_of
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.worker_processes import WorkerProcess, matmul_workload, worker
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)


class Drained:
    """One piece of work for a builder, and the server's side of it."""

    def __init__(self, url: str, gate: Path) -> None:
        self.url, self.gate = url, gate
        self.redis = redis.Redis.from_url(url)
        self.queues = WorkQueues(self.redis, SECRET)
        self.given_up: list[Work] = []
        self._requeuer = Requeuer(self.redis, self.queues, self.given_up.append)

    def ask(self) -> None:
        workload = matmul_workload(96)
        put_signed_blob(self.redis, SECRET, workload_blob(workload["hash"]), workload["json"].encode())
        item = CandidateItem(candidate_id(workload["hash"], workload["key"], UNTUNED), UNTUNED)
        self.queues.enqueue(BUILD_QUEUE, build_work(operator_of(workload), [item], work_id="w", device_key="d"))

    def is_taken(self) -> bool:
        return bool(self.redis.zcard(f"rq:wip:{BUILD_QUEUE}"))

    def drain(self, process: WorkerProcess) -> None:
        """SIGTERM, and SIGKILL before the work could end; then the worker's entry expires."""
        process.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_marked(self.redis, HANDED_BACK, "w"))
        assert process.process.poll() is None  # what it has in hand may end
        process.kill()
        self.redis.delete(worker_key(process.name))

    def sweep(self) -> None:
        self._requeuer.sweep(live_workers(self.redis, SECRET))

    def artifacts(self) -> list[ArtifactItem]:
        """What the measurer is told, once it is."""
        name = measure_queue("d", "cpu:1")
        jobs = Queue(name, connection=self.redis, serializer=JSONSerializer).jobs
        works: Any = (open_work(SECRET, name, job.id, job.args[0]) for job in jobs)
        return [item for work in works for item in work.candidates]


def is_idle(connection: redis.Redis, process: WorkerProcess) -> bool:
    process.info(connection)
    return connection.hget(f"rq:worker:{process.name}", "state") == b"idle"


@pytest.mark.long
def test_work_whose_workers_are_drained_again_and_again_is_done_in_the_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running_redis() as url:
        drained = Drained(url, gate)
        for number in range(ATTEMPTS + 1):
            with worker(f"b{number}", "build", url, gate) as process:
                wait_until(lambda process=process: is_idle(drained.redis, process), 60)
                with CoreLocks(gate).measuring(os.sched_getaffinity(0)):  # until then the worker cannot build
                    if number == 0:
                        drained.ask()
                    drained.sweep()
                    wait_until(drained.is_taken)
                    drained.drain(process)
        drained.sweep()
        assert drained.given_up == []
        with worker("last", "build", url, gate):
            wait_until(drained.artifacts, 120)
        (item,) = drained.artifacts()
    assert (item.status, item.cause) == ("ok", "")


def test_work_that_ends_after_sigterm_is_delivered(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running_redis() as url:
        drained = Drained(url, gate)
        with worker("b", "build", url, gate) as process:
            wait_until(lambda: is_idle(drained.redis, process), 60)
            with CoreLocks(gate).measuring(os.sched_getaffinity(0)):
                drained.ask()
                wait_until(drained.is_taken)
                process.process.send_signal(signal.SIGTERM)
                wait_until(lambda: is_marked(drained.redis, HANDED_BACK, "w"))
            assert process.process.wait(60) == 0
        assert [item.status for item in drained.artifacts()] == ["ok"]
        drained.sweep()
        assert drained.queues.has("w") is False


def test_a_worker_that_is_told_to_stop_when_its_redis_has_gone_says_so_in_one_line(tmp_path: Path) -> None:
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        process = WorkerProcess("b1", "build", url, tmp_path / "gate")
        wait_until(lambda: is_idle(connection, process), 60)
    process.stop()
    assert process.process.returncode == 5
    assert process.log.splitlines()[-1].startswith("fractune: Redis went away")
    assert "Traceback" not in process.log
