"""Jobs on the same operators search them once: a real server and a real Redis; the fleet is simulated.

What is asserted is work that was done, never time: which candidates were built, and at which shares each was measured.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.files.bundles import Bundle
from fractune_core.fleet.redis_state import CANCELLED, DONE
from fractune_core.operators import WINOGRAD4, is_exact
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Kind, Status
from fractune_server.transport.work_queues import WorkQueues
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, model_bytes, running_server, simulated_stack
from tests.support.secret import SECRET

OPERATORS = (("conv2d_a", 4), ("conv2d_b", 2), ("dense", 1))
ONE, TWO, BOTH = ["cpu:1"], ["cpu:2"], ["cpu:1", "cpu:2"]


class Stage:
    """A server, its fleet, and what the fleet has done."""

    def __init__(self, client: Client, fleet: SimulatedFleet) -> None:
        self.client, self.fleet = client, fleet

    def model(self, **more: Any) -> str:
        """One whose operators no other test knows."""
        mark = uuid.uuid4().hex[:6]
        model = json.loads(model_bytes(*((f"{name}_{mark}", weight) for name, weight in OPERATORS)))
        operators = [{**operator, **more} for operator in model["operators"]]
        return self.client.upload(json.dumps({"operators": operators}).encode())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Jobs that are created within begin to search at the same time."""
        with self.fleet.held("compile-1"):
            yield
            wait_until(lambda: not self._any_queued())

    def _any_queued(self) -> bool:
        """Whether the engine, which looks for new jobs a few times a second, has yet to take one up."""
        found = self.client.jobs.ListJobs(pb.ListJobsRequest(open_only=True)).jobs
        return any(job.state == pb.JOB_STATE_QUEUED for job in found)

    def finish(self, *names: str) -> list[pb.Job]:
        jobs = [self.client.finish(name) for name in names]
        assert [(job.state, job.message) for job in jobs] == [(pb.JOB_STATE_DONE, "")] * len(jobs)
        return jobs

    def start(self, model: str, shares: list[str], **spec: Any) -> str:
        return self.client.create(model, shares=shares, **spec).name

    def begins(self, name: str, **spec: Any) -> pb.Job:
        return self.client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING, **spec)

    def built(self, model: str) -> Counter[str]:
        """Builds of trials of the model's operators, by candidate."""
        known = {record.candidate_id for record in self.trials(model)}
        return self._counted(known)

    def _counted(self, known: set[str]) -> Counter[str]:
        every = [built for worker in self.fleet.workers.values() for built in worker.built]
        return Counter(candidate for kind, candidate in every if kind == Kind.TRIAL and candidate in known)

    def measured(self, model: str) -> Counter[tuple[str, str]]:
        """Measurements of trials of the model's operators, by candidate and share."""
        known = {record.candidate_id for record in self.trials(model)}
        every = [measured for worker in self.fleet.workers.values() for measured in worker.measured]
        return Counter((name, share) for kind, name, share in every if kind == Kind.TRIAL and name in known)

    def trials(self, model: str, **chosen: Any) -> list[pb.Record]:
        wanted = pb.RecordFilter(model=model, kind="trial", **chosen)
        return list(self.client.log.ListRecords(pb.ListRecordsRequest(filter=wanted, page_size=1000)).records)

    def searched(self, job: str) -> list[Any]:
        """The searches that a job asked for."""
        tuners = [worker for worker in self.fleet.workers.values() if worker.role == "tune"]
        return [work for tuner in tuners for work in tuner.handled if work.job == job.removeprefix("jobs/")]

    def check_once(self, model: str) -> None:
        """No candidate was built twice, and none measured twice at a share."""
        built, measured = self.built(model), self.measured(model)
        assert set(built.values()) == {1}
        assert set(measured.values()) == {1}


@pytest.fixture(scope="module")
def stage(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    state = tmp_path_factory.mktemp("here") / "state"
    with (
        simulated_fleet(redis_url) as fleet,
        running_server(redis_url, state) as server,
        server.client() as client,
    ):
        yield Stage(client, fleet)


@pytest.mark.parametrize("budget", [{"trials": 48}, {"more": 24}])
def test_equal_jobs_cost_the_trials_of_one(stage: Stage, budget: dict[str, int]) -> None:
    model = stage.model()
    with stage.together():
        names = [stage.start(model, BOTH, **budget) for _ in range(4)]
    jobs = stage.finish(*names)
    (count,) = budget.values()
    assert len(stage.built(model)) == count
    stage.check_once(model)
    assert sum(job.progress.candidates_done for job in jobs) == count
    for job in jobs:
        assert job.progress.candidates_done + job.progress.candidates_shared == count
        assert job.progress.trials_planned == count
        assert sum(op.trials for op in job.operators) == count


@pytest.mark.parametrize(
    "shares",
    [
        [ONE, BOTH],
        [ONE, TWO],
        pytest.param([BOTH, ONE], marks=pytest.mark.long),
        pytest.param([TWO, BOTH, ONE, BOTH, ONE], marks=pytest.mark.long),
    ],
)
def test_jobs_whose_shares_overlap_build_a_candidate_once_and_measure_it_once_at_each(
    stage: Stage, shares: list[list[str]]
) -> None:
    model = stage.model()
    with stage.together():
        names = [stage.start(model, each, trials=48) for each in shares]
    stage.finish(*names)
    stage.check_once(model)
    assert len(stage.built(model)) == 48
    ran = {record.candidate_id for record in stage.trials(model) if record.status == Status.OK}
    measured = {pair for pair in stage.measured(model) if pair[0] in ran}
    assert measured == {(name, share) for name in ran for share in BOTH}


def test_a_job_that_joins_while_rounds_are_under_way_has_their_candidates_without_a_build(stage: Stage) -> None:
    model = stage.model()
    built = stage.fleet.workers["build-1"].built
    before = len(built)
    with stage.fleet.held("measure-1"):
        first = stage.start(model, ONE, trials=48)
        wait_until(lambda: len(built) > before)
        second = stage.start(model, BOTH, trials=48)
        stage.begins(second)
    done = stage.finish(first, second)
    stage.check_once(model)
    assert len(stage.built(model)) == 48
    assert done[1].progress.candidates_shared > 0


def test_a_job_that_comes_after_another_gets_what_is_there_and_only_what_it_lacks_is_measured(stage: Stage) -> None:
    model = stage.model()
    (first,) = stage.finish(stage.start(model, ONE, trials=48))
    (second,) = stage.finish(stage.start(model, BOTH, trials=48))
    assert first.progress.candidates_done == 48
    assert stage.searched(second.name) == []
    measured = stage.measured(model)
    assert set(measured.values()) == {1}
    assert Counter(share for _, share in measured)["cpu:1"] == 48
    assert [op.trials for op in second.operators] == [op.trials for op in first.operators]


def test_a_job_at_other_shares_searches_where_the_log_knows_it_at_none_of_its_own(stage: Stage) -> None:
    model = stage.model()
    stage.finish(stage.start(model, ONE, trials=24))
    (job,) = stage.finish(stage.start(model, TWO, trials=24))
    assert stage.searched(job.name)
    assert sum(op.trials for op in job.operators) == 24
    assert set(stage.measured(model).values()) == {1}


def test_a_job_with_fewer_trials_ends_with_its_own_number(stage: Stage) -> None:
    model = stage.model()
    with stage.together():
        many, few = stage.start(model, ONE, trials=96), stage.start(model, TWO, trials=12)
    large, small = stage.finish(many, few)
    assert sum(op.trials for op in large.operators) == 96
    assert 12 <= sum(op.trials for op in small.operators) < 96
    assert set(stage.measured(model).values()) == {1}


def test_an_exact_job_takes_no_part_in_rounds_that_are_not(stage: Stage) -> None:
    model = stage.model(implementation=WINOGRAD4)
    with stage.together():
        plain, exact = stage.start(model, BOTH, trials=24), stage.start(model, BOTH, trials=24, exact=True)
    _, done = stage.finish(plain, exact)
    assert (done.progress.candidates_done, done.progress.candidates_shared) == (24, 0)
    assert sum(op.trials for op in done.operators) == 24
    assert {is_exact(record.trace) for record in stage.trials(model, job=exact)} == {True}
    assert {is_exact(record.trace) for record in stage.trials(model, job=plain)} == {False}
    stage.check_once(model)


def test_a_fresh_job_neither_reads_nor_shares(stage: Stage) -> None:
    model = stage.model()
    stage.finish(stage.start(model, BOTH, trials=24))
    with stage.together():
        others = [stage.start(model, BOTH, trials=48) for _ in range(2)]
        fresh = stage.start(model, BOTH, trials=24, fresh=True)
    *_, job = stage.finish(*others, fresh)
    assert (job.progress.candidates_done, job.progress.candidates_shared) == (24, 0)
    assert sum(op.trials for op in job.operators) == 24
    own = stage.trials(model, job=fresh)
    assert len({record.candidate_id for record in own}) == 24
    known = {record.candidate_id for record in own}
    openings = [work.opening for work in stage.searched(fresh) if work.opening]
    assert openings
    for opening in openings:
        assert {past.candidate for past in opening.history} <= known
        assert set(opening.known) <= known
        assert not opening.transferred
    assert all(record.job == fresh.removeprefix("jobs/") for record in _in_bundle(stage, job))


def _in_bundle(stage: Stage, job: pb.Job) -> list[pb.Record]:
    """The records behind the schedules of a job's bundle."""
    request = pb.DownloadBundleRequest(name=job.result.bundle)
    manifest = Bundle(b"".join(part.data for part in stage.client.bundles.DownloadBundle(request))).manifest
    named = {
        choice["record"] for op in manifest["operators"] for choice in op["by_variant"].values() if choice["record"]
    }
    wanted = pb.ListRecordsRequest(filter=pb.RecordFilter(kind="validation"), page_size=1000)
    return [record for record in stage.client.log.ListRecords(wanted).records if record.name.split("/")[1] in named]


def test_scopes_share_nothing_and_a_scope_s_workloads_stay_in_it(stage: Stage) -> None:
    model = stage.model()
    with stage.together():
        names = [
            stage.start(model, BOTH, trials=24, namespace=namespace) for namespace in ("", "acme", "acme", "other")
        ]
    jobs = stage.finish(*names)
    assert [sum(op.trials for op in job.operators) for job in jobs] == [24] * 4
    for namespace, owners in (("", names[:1]), ("acme", names[1:3]), ("other", names[3:])):
        records = stage.trials(model, namespace=namespace)
        assert len(records) == 24 * 2
        assert {f"jobs/{record.job}" for record in records} <= set(owners)
        assert {record.namespace for record in records} == {namespace}
    private = stage.model()
    stage.finish(stage.start(private, BOTH, trials=24, namespace="acme"))
    assert _exported(stage, private, "") == (set(), set())
    assert [len(found) for found in _exported(stage, private, "acme")] == [3, 3]
    match = stage.client.log.MatchModel(pb.MatchModelRequest(model=private, share="cpu:1"))
    assert {each.how for each in match.matches} == {"none"}
    match = stage.client.log.MatchModel(pb.MatchModelRequest(model=private, share="cpu:1", namespace="acme"))
    assert "exact" in {each.how for each in match.matches}


def _exported(stage: Stage, model: str, namespace: str) -> tuple[set[str], set[str]]:
    """Workload hashes of the texts, and of the records, that an export of the model brings."""
    chosen = pb.RecordFilter(model=model, namespace=namespace)
    parts = list(stage.client.log.ExportRecords(pb.ExportRecordsRequest(filter=chosen, with_workloads=True)))
    texts = {part.workload.workload_hash for part in parts if part.WhichOneof("part") == "workload"}
    return texts, {part.record.workload_hash for part in parts if part.WhichOneof("part") == "record"}


@pytest.mark.parametrize(
    "held",
    [
        "build-1",
        "measure-1",
        pytest.param("tune-1", marks=pytest.mark.long),
        pytest.param("measure-2", marks=pytest.mark.long),
    ],
)
def test_when_the_job_that_asked_first_is_cancelled_the_others_take_over(stage: Stage, held: str) -> None:
    model = stage.model()
    with stage.fleet.held(held):
        with stage.together():
            first = stage.start(model, BOTH, trials=48, priority=1)
            others = [stage.start(model, shares, trials=48) for shares in (BOTH, ONE)]
        for name in (first, *others):
            stage.begins(name)
        wait_until(lambda: len(stage.searched(first)) > 0)
        stage.client.jobs.CancelJob(pb.CancelJobRequest(name=first))
    jobs = stage.finish(*others)
    stage.check_once(model)
    assert len(stage.built(model)) == 48
    assert all(sum(op.trials for op in job.operators) == 48 for job in jobs)
    assert jobs[0].progress.candidates_shared > 0, "what the cancelled job had asked for"


@pytest.mark.long
def test_a_job_whose_share_nobody_measures_any_more_holds_no_other_up(stage: Stage) -> None:
    model = stage.model()
    with stage.together():
        stuck = stage.start(model, BOTH, trials=48, priority=1)
        stage.fleet.remove("measure-2")
        free = stage.start(model, ONE, trials=48)
    try:
        (job,) = stage.finish(free)
        assert sum(op.trials for op in job.operators) == 48
        assert stage.client.job(stuck).state == pb.JOB_STATE_TUNING
    finally:
        stage.fleet.add("measure", "measure-2", "cpu:2")
    (late,) = stage.finish(stuck)
    assert sum(op.trials for op in late.operators) >= 48


_CLIENT = """
import sys
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.server_process import Client
with Client(sys.argv[1]) as client:
    job = client.create(sys.argv[2], trials=48, shares=["cpu:1", "cpu:2"])
    print(job.name, flush=True)
    client.finish(job.name)
"""


@pytest.mark.long
def test_when_the_client_that_asked_first_dies_and_the_server_restarts_all_finish(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_redis() as url, simulated_fleet(url) as fleet:
        with running_server(url, state) as server, server.client() as client:
            stage = Stage(client, fleet)
            model = stage.model()
            with stage.fleet.held("measure-1"):
                command = [sys.executable, "-c", _CLIENT, server.address, model]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout is not None
                    first = process.stdout.readline().strip()
                    wait_until(lambda: len(stage.searched(first)) > 0)
                    others = [stage.start(model, shares, trials=48) for shares in (ONE, BOTH)]
                    for name in others:
                        stage.begins(name)
                    os.kill(process.pid, signal.SIGKILL)
                server.kill()
        with running_server(url, state) as server, server.client() as client:
            stage = Stage(client, fleet)
            for job in stage.finish(first, *others):
                assert sum(op.trials for op in job.operators) == 48
            stage.check_once(model)


@pytest.mark.long
def test_a_job_cancelled_just_before_the_server_dies_holds_no_other_up(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_redis() as url, simulated_fleet(url) as fleet:
        with running_server(url, state) as server, server.client() as client:
            stage = Stage(client, fleet)
            model = stage.model()
            with stage.fleet.held("build-1"):
                with stage.together():
                    first, other = stage.start(model, BOTH, trials=24), stage.start(model, ONE, trials=24)
                stage.begins(other)
                wait_until(lambda: len(stage.searched(first)) > 0)
                client.jobs.CancelJob(pb.CancelJobRequest(name=first))
                server.kill()
        with running_server(url, state) as server, server.client() as client:
            stage = Stage(client, fleet)
            (job,) = stage.finish(other)
            assert sum(op.trials for op in job.operators) == 24
            assert set(stage.measured(model).values()) == {1}


ROLES = ("tune-1", "build-1", "measure-1")


class Repeating:
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
def repeating(tmp_path: Path) -> Iterator[Repeating]:
    with simulated_stack(tmp_path / "state") as (url, fleet, _, client):
        repeating = Repeating(url, client, fleet)
        yield repeating
        repeating.redis.close()


def test_work_of_an_ended_job_that_is_given_again_adds_nothing(repeating: Repeating) -> None:
    for name in ROLES:
        repeating.fleet.workers[name].hold.set()
    name = repeating.client.create(repeating.model(), trials=0, more=12).name
    for worker in ROLES:
        repeating.copy_work_in_hand(worker)
    assert repeating.client.finish(name).progress.candidates_done == 12
    charged = repeating.pieces(name)
    repeating.repeat()
    assert list(repeating.trials(name).values()) == [1] * 24  # at each of two shares
    assert repeating.pieces(name) == charged


def test_work_of_a_cancelled_job_that_is_given_again_adds_nothing(repeating: Repeating) -> None:
    repeating.fleet.workers["tune-1"].hold.set()
    name = repeating.client.create(repeating.model(), trials=12).name
    wait_until(lambda: repeating.fleet.workers["tune-1"].handled)
    repeating.client.jobs.CancelJob(pb.CancelJobRequest(name=name))
    wait_until(lambda: repeating.redis.zcard(CANCELLED) == 2)  # the job, then its round
    repeating.copy_work_in_hand("tune-1")
    repeating.repeat()
    assert repeating.trials(name) == Counter()
