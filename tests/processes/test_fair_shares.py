"""A small job beside a large one, on a real server with TLS and tokens; the fleet is simulated.

What is asserted is work that was handed out and done, in the order in which the workers took it, never time.
"""

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.access import Quotas, Scope, TokenText
from fractune_core.fleet.redis_names import measure_queue
from fractune_core.jobs import Priority
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Kind
from fractune_server.admin import Admin
from fractune_server.scheduler.allocation import FIRST_ROUND
from fractune_server.transport.work_queues import WorkQueues
from tests.processes.test_access import Place, client_credentials, running_place
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.made_up import DEVICE
from tests.support.processes.redis_process import wait_until
from tests.support.processes.server_process import Client, as_call, model_bytes
from tests.support.secret import SECRET


@dataclass
class Stage:
    place: Place
    fleet: SimulatedFleet

    def is_idle(self) -> bool:
        with redis.Redis.from_url(self.place.redis_url) as connection:
            return WorkQueues(connection, SECRET).idle()

    def token(self, max_priority: Priority = Priority.NORMAL) -> TokenText:
        return Admin(self.place.state).create_token("t", Scope.SUBMIT, None, Quotas(), max_priority)

    def client(self, token: TokenText) -> Client:
        return Client(self.place.server.address, client_credentials(self.place.authority, token))

    def waiting(self, share: str) -> int:
        """Batches that wait to be measured."""
        with redis.Redis.from_url(self.place.redis_url) as connection:
            queue = Queue(measure_queue(DEVICE.key, share), connection=connection, serializer=JSONSerializer)
            return len(queue.get_job_ids())

    def asked(self, *jobs: pb.Job) -> list[tuple[str, int]]:
        """Each search for one of these jobs, in their order: the job, and how many candidates it was asked for."""
        handled = [(f"jobs/{work.job}", work.count) for work in self.fleet.workers["tune-1"].handled]
        return [(job, count) for job, count in handled if job in {each.name for each in jobs}]

    def measured(self, *jobs: pb.Job) -> list[tuple[str, int]]:
        """Each batch of trials of these jobs that was measured at cpu:1, in their order: the job, and how many."""
        done = self.fleet.workers["measure-1"].handled
        trials = [work for work in done if work.task == "measure" and work.purpose is Kind.TRIAL]
        handled = [(f"jobs/{work.job}", len(work.candidates)) for work in trials]
        return [(job, count) for job, count in handled if job in {each.name for each in jobs}]


@pytest.fixture(scope="module")
def one_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_place(tmp_path_factory.mktemp("fair")) as place, simulated_fleet(place.redis_url) as fleet:
        yield Stage(place, fleet)


@pytest.fixture
def stage(one_stage: Stage) -> Stage:
    """Nothing is left of an earlier test's jobs: its work would be counted among that which waits."""
    wait_until(one_stage.is_idle)
    return one_stage


def job(client: Client, trials: int, **spec: Any) -> pb.Job:
    """One whose operators no other job knows."""
    model = model_bytes(*((f"{name}_{uuid.uuid4().hex[:6]}", 1) for name in ("conv_a", "conv_b", "dense")))
    return client.create(client.upload(model), trials=trials, **spec)


def begins(client: Client, created: pb.Job) -> None:
    client.wait(created.name, lambda job: job.state == pb.JOB_STATE_TUNING)


def total(parts: list[tuple[str, int]]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for name, count in parts:
        counted[name] += count
    return counted


def up_to_the_last_of(name: str, parts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    last = max(place for place, (each, _) in enumerate(parts) if each == name)
    return parts[: last + 1]


@pytest.mark.parametrize(
    "is_another",
    [pytest.param(True, id="another token"), pytest.param(False, id="the same token", marks=pytest.mark.long)],
)
def test_a_small_job_is_not_stuck_behind_a_large_one(stage: Stage, is_another: bool) -> None:  # noqa: FBT001
    token = stage.token()
    with stage.client(token) as mine, stage.client(stage.token() if is_another else token) as theirs:
        with stage.fleet.held("measure-1", "measure-2"):
            large = job(mine, 2000)
            # Two rounds, four candidates in a batch, one batch in hand.
            wait_until(lambda: len(stage.measured(large)) == 1 and stage.waiting("cpu:1") == 2 * FIRST_ROUND // 4 - 1)
            before = 1
            small = job(theirs, 16)
            wait_until(lambda: len(stage.asked(small)) == 3 and stage.waiting("cpu:1") == 6)
        ended = theirs.finish(small.name)
        assert ended.progress.candidates_done == 16
        order = stage.measured(large, small)
        assert [name for name, _ in order[:before]] == [large.name]
        assert {name for name, _ in order[before : before + 3]} == {small.name}, "they go before what waited"
        assert total(up_to_the_last_of(small.name, order)[before:])[large.name] <= 2 * 16
        began = [name for name, _ in stage.asked(large, small)].index(small.name)
        beside = up_to_the_last_of(small.name, stage.asked(large, small))[began:]
        assert max((count for name, count in beside if name == large.name), default=0) <= FIRST_ROUND
        assert mine.job(large.name).state == pb.JOB_STATE_TUNING
        mine.jobs.CancelJob(pb.CancelJobRequest(name=large.name))
        # The engine drops cancelled jobs as it loads new ones. Until then it may ask for more of this one, though no
        # work waits for the moment.
        theirs.finish(job(theirs, 4).name)


@pytest.mark.long
def test_jobs_of_equal_priority_get_equal_parts(stage: Stage) -> None:
    with stage.client(stage.token()) as one, stage.client(stage.token()) as other:
        with stage.fleet.held("compile-1"):
            jobs = [job(one, 400), job(other, 400)]
        for client, created in zip((one, other), jobs, strict=True):
            assert client.finish(created.name).progress.candidates_done == 400
        asked = stage.asked(*jobs)
        ends = [up_to_the_last_of(each.name, asked) for each in jobs]
        got = total(min(ends, key=len))
        assert min(got[each.name] for each in jobs) >= 400 - 2 * 64


def test_a_low_priority_gets_less_and_is_not_left_out(stage: Stage) -> None:
    with stage.client(stage.token(Priority.HIGH)) as client:
        with stage.fleet.held("compile-1"):
            low, high = job(client, 320, priority=-1), job(client, 320, priority=1)
        client.finish(high.name)
        got = total(up_to_the_last_of(high.name, stage.asked(low, high)))
        assert got[high.name] == 320
        assert 0 < got[low.name] <= 320 // 2
        assert client.finish(low.name).progress.candidates_done == 320


def test_a_token_has_a_highest_priority(stage: Stage) -> None:
    token = stage.token(Priority.LOW)
    with stage.client(token) as client:
        with pytest.raises(grpc.RpcError) as refused:
            job(client, 8)
        assert as_call(refused.value).code() is grpc.StatusCode.PERMISSION_DENIED
        said = f"priority normal is above low, the highest of token {token.token_id}"
        assert said in (as_call(refused.value).details() or "")
        assert client.finish(job(client, 8, priority=-1).name).state == pb.JOB_STATE_DONE
    assert [each["max_priority"] for each in Admin(stage.place.state).list_tokens()][-1] == "low"
