"""The one queue of the compile workers on a real server with TLS: no token fills it. The fleet is simulated."""

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fractune_core.access import Quotas, Scope
from fractune_core.fleet.redis_names import COMPILE_QUEUE
from fractune_core.fleet.signed_messages import open_dated_work
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from fractune_server.transport.work_queues import WorkQueues, fetch, message_of
from tests.processes.test_access import Place, client_credentials, running_place
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.made_up import DEVICE
from tests.support.processes.redis_process import wait_until
from tests.support.processes.server_process import Client, model_bytes
from tests.support.secret import SECRET

MANY = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("queue")) as made:
        yield made


@pytest.fixture
def fleet(place: Place) -> Iterator[SimulatedFleet]:
    """Its compile worker finishes nothing that it begins."""
    with simulated_fleet(place.redis_url) as made:
        made.workers["compile-1"].hold.set()
        yield made


def a_client(place: Place, name: str) -> Client:
    made = Admin(place.state).create_token(name, Scope.SUBMIT, None, Quotas())
    return Client(place.server.address, client_credentials(place.authority, made))


def fresh(client: Client) -> str:
    return client.upload(model_bytes((f"conv_{uuid.uuid4().hex[:6]}", 1)))


def pieces(fleet: SimulatedFleet) -> Counter[str]:
    """In the compile workers' queue and at the worker, by owner."""
    worker = fleet.workers["compile-1"]
    owners = [work.owner for work in worker.handled if work not in worker.delivered]
    for queue in WorkQueues(worker.redis, SECRET).all():
        for job_id in queue.get_job_ids() if queue.name == COMPILE_QUEUE else ():
            job: Any = fetch(worker.redis, job_id)
            work: Any = open_dated_work(SECRET, COMPILE_QUEUE, job_id, message_of(job))[0]
            owners.append(work.owner)
    return Counter(owners)


def in_order(counts: Counter[str]) -> list[int]:
    return sorted(counts.values())


def test_a_job_waits_for_few_pieces_of_another_tokens_jobs(place: Place, fleet: SimulatedFleet) -> None:
    with a_client(place, "greedy") as greedy, a_client(place, "other") as other:
        many = [greedy.create(fresh(greedy), trials=1).name for _ in range(MANY)]
        wait_until(lambda: in_order(pieces(fleet)) == [2])
        one = other.create(fresh(other), trials=1).name
        other.wait(one, lambda job: job.state == pb.JOB_STATE_INGESTING)
        assert in_order(pieces(fleet)) == [1, 2]
        assert Counter(greedy.job(name).state for name in many)[pb.JOB_STATE_QUEUED] == MANY - 2
        fleet.workers["compile-1"].hold.clear()
        assert other.finish(one).state == pb.JOB_STATE_DONE
        assert {greedy.finish(name).state for name in many} == {pb.JOB_STATE_DONE}


def test_a_job_waits_for_few_models_that_another_tokens_calls_read(place: Place, fleet: SimulatedFleet) -> None:
    with a_client(place, "greedy") as greedy, a_client(place, "other") as other:
        calls = [
            greedy.log.MatchModel.future(pb.MatchModelRequest(model=fresh(greedy), share="cpu:1"), timeout=60)
            for _ in range(MANY)
        ]
        wait_until(lambda: in_order(pieces(fleet)) == [2])
        one = other.create(fresh(other), trials=1).name
        other.wait(one, lambda job: job.state == pb.JOB_STATE_INGESTING)
        assert in_order(pieces(fleet)) == [1, 2]
        fleet.workers["compile-1"].hold.clear()
        assert other.finish(one).state == pb.JOB_STATE_DONE
        assert [len(call.result().matches) for call in calls] == [1] * MANY


def test_plans_whose_models_are_being_read_keep_no_other_plan_waiting(place: Place, fleet: SimulatedFleet) -> None:
    with a_client(place, "planner") as client:
        begun = []
        for _ in range(2):
            request = pb.MakePlanRequest(cores=DEVICE.units, layouts="cpu")
            request.models.add(name="read", rate_per_s=1.0, latency_s=1.0, model=fresh(client), requests_per_run=1)
            begun.append(client.plans.MakePlan.future(request, timeout=60))
        wait_until(lambda: in_order(pieces(fleet)) == [2])
        stated = pb.MakePlanRequest(gpu="A100-80GB", layouts="mps")
        row = pb.PlanRow(share="mps:100", throughput_per_s=9.0, latency_s=0.1)
        stated.models.add(name="stated", rate_per_s=1.0, latency_s=1.0, rows=[row])
        assert client.plans.MakePlan(stated, timeout=60).devices
        for call in begun:
            call.cancel()
