"""Genuine work is given again, by somebody who writes to Redis and does not know the fleet's secret: he copies signed
messages, waits until their work is done, removes the marks of completion, and puts the copies back on their queues.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.fleet.marks import CANCELLED, DONE
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.transport.work_queues import WorkQueues
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, model_bytes, running_server
from tests.support.secret import SECRET

ROLES = ("tune-1", "build-1", "measure-1")


class Stage:
    def __init__(self, url: str, client: Client, fleet: SimulatedFleet) -> None:
        self.redis = redis.Redis.from_url(url)
        self.client, self.fleet = client, fleet
        self.copies: dict[str, bytes] = {}
        """of RQ's jobs, by key, as Redis dumps them"""

    def model(self) -> str:
        return self.client.upload(model_bytes((f"op_{uuid.uuid4().hex[:6]}", 1)))

    def copy_work_in_hand(self, worker: str) -> None:
        """Copy what waits or runs, once the worker has something in its hands; it goes on afterwards."""
        held = self.fleet.workers[worker]
        wait_until(lambda: len(held.handled) > len(held.delivered))
        for key in self.redis.scan_iter("rq:job:*", _type="hash"):
            if copy := self.redis.dump(key):  # it may have been done meanwhile
                self.copies[key.decode()] = copy
        held.hold.clear()

    def repeat(self) -> None:
        """Put all copies back, and wait until the fleet has done what comes of them and the server has seen it."""
        idle, before = WorkQueues(self.redis, SECRET).idle, len(self.fleet.workers["tune-1"].delivered)
        wait_until(idle)
        self.redis.delete(DONE, CANCELLED)
        for key, copy in self.copies.items():
            self.redis.restore(key, 0, copy, replace=True)
            origin: Any = self.redis.hget(key, "origin")
            self.redis.rpush(f"rq:queue:{origin.decode()}", key.removeprefix("rq:job:"))
        wait_until(lambda: len(self.fleet.workers["tune-1"].delivered) > before)
        wait_until(idle)
        # Its results come after those in the same streams.
        assert self.client.finish(self.client.create(self.model(), trials=2).name).state == pb.JOB_STATE_DONE

    def trials(self, job: str) -> Counter[tuple[str, str]]:
        """How often the log has each candidate at each share."""
        chosen = pb.RecordFilter(job=job, kind="trial")
        found = self.client.log.ListRecords(pb.ListRecordsRequest(filter=chosen, page_size=1000)).records
        return Counter((record.candidate_id, record.granted.share) for record in found)

    def pieces(self, job: str) -> int:
        """How many pieces of work the job is charged for."""
        (cost,) = self.client.jobs.ListCosts(pb.ListCostsRequest(job=job)).costs
        return sum(each.pieces for each in cost.spent)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with (
        running_redis() as url,
        simulated_fleet(url) as fleet,
        running_server(url, tmp_path / "state") as server,
        server.client() as client,
    ):
        stage = Stage(url, client, fleet)
        yield stage
        stage.redis.close()


def test_work_of_an_ended_job_that_is_given_again_adds_nothing(stage: Stage) -> None:
    for name in ROLES:
        stage.fleet.workers[name].hold.set()
    name = stage.client.create(stage.model(), trials=0, more=12).name
    for worker in ROLES:
        stage.copy_work_in_hand(worker)
    assert stage.client.finish(name).progress.candidates_done == 12
    charged = stage.pieces(name)
    stage.repeat()
    assert list(stage.trials(name).values()) == [1] * 24  # at each of two shares
    assert stage.pieces(name) == charged


def test_work_of_a_cancelled_job_that_is_given_again_adds_nothing(stage: Stage) -> None:
    stage.fleet.workers["tune-1"].hold.set()
    name = stage.client.create(stage.model(), trials=12).name
    wait_until(lambda: stage.fleet.workers["tune-1"].handled)
    stage.client.jobs.CancelJob(pb.CancelJobRequest(name=name))
    wait_until(lambda: stage.redis.zcard(CANCELLED) == 2)  # the job, then its round
    stage.copy_work_in_hand("tune-1")
    stage.repeat()
    assert stage.trials(name) == Counter()
