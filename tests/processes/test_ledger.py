"""The ledger of a real server and what a simulated fleet says of its work, after kills and with doubled results."""

import contextlib
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from pathlib import Path

import grpc
import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.access import Quotas, Scope
from fractune_core.fleet.redis_names import BUILD_QUEUE
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from tests.processes.test_access import client_credentials, running_place
from tests.support.paths import REPOSITORY
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.made_up import CPU_S, WORKED_S
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, as_call, model_bytes, running_server, simulated_stack

KINDS = {"ingest", "search", "build", "measure", "compile", "time_model"}
TRIALS = 96


def fresh() -> bytes:
    return model_bytes(*((f"{name}_{uuid.uuid4().hex[:6]}", 1) for name in ("conv", "dense")))


def cost_of(client: Client, job: str) -> pb.JobCost:
    (found,) = client.jobs.ListCosts(pb.ListCostsRequest(job=job)).costs
    return found


def check(cost: pb.JobCost, fleet: SimulatedFleet) -> None:
    """Each piece of work that was delivered is in the ledger once, with what it took."""
    told = {(each.task, each.share): each.pieces for each in cost.spent}

    def done() -> Counter[tuple[str, str]]:
        delivered = {work.work_id: work for worker in fleet.workers.values() for work in list(worker.delivered)}
        own = (work for work in delivered.values() if f"jobs/{work.job}" == cost.job.name)
        return Counter((work.task, getattr(work, "share", "")) for work in own)

    with contextlib.suppress(TimeoutError):  # a worker notes what it has sent a moment after it was sent
        wait_until(lambda: told == done())
    assert told == done()
    assert {each.task for each in cost.spent} == KINDS
    for each in cost.spent:
        assert (each.worked_s, each.cpu_s) == (each.pieces * WORKED_S, each.pieces * CPU_S)


@pytest.mark.long
def test_a_job_costs_what_its_pieces_cost_though_servers_are_killed_and_results_come_twice(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet:
        for worker in fleet.workers.values():
            worker.twice = True
        name = ""
        for part in (1, 2, 3):
            with running_server(url, tmp_path / "state") as server, server.client() as client:
                name = name or client.create(client.upload(fresh()), trials=TRIALS, round_size=8).name
                reached = part * TRIALS // 4
                client.wait(name, lambda job, reached=reached: job.progress.candidates_done >= reached)  # type: ignore[misc]
                server.kill()
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            ended = client.finish(name)
            cost = cost_of(client, name)
            check(cost, fleet)
            sums: defaultdict[str, float] = defaultdict(float)
            for each in cost.spent:
                sums[each.task] += each.worked_s
            assert dict(ended.progress.busy_s) == dict(sums)


@pytest.mark.long
def test_what_a_killed_worker_did_not_deliver_costs_once(tmp_path: Path) -> None:
    with simulated_stack(tmp_path / "state") as (url, fleet, _, client), redis.Redis.from_url(url) as connection:
        fleet.remove("build-1")
        command = [sys.executable, "-m", "tests.support.processes.fleet_simulated", url, "build", "doomed"]
        with subprocess.Popen(command, cwd=REPOSITORY, env={"HOLD": "1"}) as doomed:
            name = client.create(client.upload(fresh()), trials=16).name
            queue = Queue(BUILD_QUEUE, connection=connection, serializer=JSONSerializer)
            wait_until(lambda: queue.started_job_registry.get_job_ids(cleanup=False))
            doomed.kill()
        fleet.add("build", "build-1")
        client.finish(name)
        check(cost_of(client, name), fleet)


def test_whose_jobs_are_is_told_to_admins_alone(tmp_path: Path) -> None:
    with running_place(tmp_path) as place, simulated_fleet(place.redis_url):
        made = [Admin(place.state).create_token("t", scope, None, Quotas()) for scope in (Scope.SUBMIT, Scope.ADMIN)]
        mine, ours = (Client(place.server.address, client_credentials(place.authority, token)) for token in made)
        with mine, ours:
            name = mine.finish(mine.create(mine.upload(fresh()), trials=8).name).name
            (cost,) = ours.jobs.ListCosts(pb.ListCostsRequest(with_tokens=True)).costs
            assert (cost.job.name, cost.token) == (name, made[0].token_id)
            assert cost_of(mine, name).token == ""
            with pytest.raises(grpc.RpcError) as refused:
                mine.jobs.ListCosts(pb.ListCostsRequest(with_tokens=True))
            assert as_call(refused.value).code() is grpc.StatusCode.PERMISSION_DENIED
            later = pb.ListCostsRequest()
            later.since.FromSeconds(int(cost.job.end_time.seconds) + 60)
            assert not ours.jobs.ListCosts(later).costs
            never = pb.ListCostsRequest()
            never.since.seconds = 2**63 - 1
            with pytest.raises(grpc.RpcError, match="no time of the years 1 to 9999"):
                ours.jobs.ListCosts(never)
            with pytest.raises(grpc.RpcError, match="no job 'none'"):
                cost_of(mine, "jobs/none")
