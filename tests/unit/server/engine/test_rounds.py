"""Which rounds there are, by who searches and what is searched."""

import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fractune_core.errors import BadModel, StateUnusable
from fractune_core.fleet.messages import Ingested
from fractune_core.fleet.redis_names import BUILD_QUEUE
from fractune_core.jobs import JobSpec, JobState
from fractune_core.operators import workload_hash
from fractune_core.records import Kind
from fractune_server.engine import engine as module
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.engine.engine import Engine
from fractune_server.engine.ingest import CompileTurns
from fractune_server.engine.publish import PublishPhase
from fractune_server.engine.rounds import LiveRound, Rounds, SearchOwners
from fractune_server.scheduler.fair_queue import Claimant, FairQueue
from fractune_server.store.jobs import Round, StoredJob
from fractune_server.store.records.log import LogKey
from fractune_server.store.store import IngestKey
from fractune_server.transport.context import ServerContext
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import BUILD
from tests.support.samples import DEVICE, TARGET_KEY, granted
from tests.support.secret import SECRET

W1, W2 = map(workload_hash, "12")


@pytest.fixture
def rounds(context: ServerContext) -> Rounds:
    context.store.log.add_workloads([(W1, "1"), (W2, "2")])
    return Rounds(context, WorkQueues(context.redis, SECRET), FairQueue())


def live(name: str, instance: str, workload: str, kind: Kind = Kind.TRIAL) -> LiveRound:
    made: Any = Round(name, "j", kind, workload, instance, 4)
    job: Any = SimpleNamespace(id="j", claimant=Claimant("j", ""), shares=["cpu:1"], dirty=False)
    return LiveRound(made, LogKey(workload, TARGET_KEY, DEVICE.key), DEVICE, "default", {"j": job})


def test_trials_are_found_by_their_instance_and_by_their_search_as_long_as_they_last(rounds: Rounds) -> None:
    made = [
        live("r1", "t1", W1),
        live("r2", "t1", W2),
        live("r3", "t2", W2),
        live("v", "", W2, Kind.VALIDATION),
    ]
    for each in made:
        rounds.start(each, BUILD_QUEUE, [BUILD])
    key = made[1].key
    assert rounds.trials_of("t1") == made[:2]
    assert rounds.trials_for(key) == rounds.trials_for(replace(key, exact=True)) == made[1:3]
    rounds.end(made[1])
    assert rounds.trials_of("t1") == made[:1]
    assert rounds.trials_for(key) == made[2:3]
    rounds.end(made[2])
    assert rounds.trials_of("t2") == rounds.trials_for(key) == rounds.trials_of("never") == []
    assert rounds.all() == [made[0], made[3]]


FIRST, SECOND, THIRD = (LogKey(name * 16, "target", "device") for name in "abc")


def test_a_search_goes_on_where_it_is_known_until_its_instance_is_gone() -> None:
    owners = SearchOwners()
    assert owners.may_search(FIRST, "one")
    assert owners.give(FIRST, "one")
    assert not owners.give(FIRST, "one")
    assert owners.may_search(FIRST, "one")
    assert not owners.may_search(FIRST, "two")
    owners.drop({"one"})
    assert owners.may_search(FIRST, "two")
    assert owners.give(FIRST, "two")
    owners.forget(FIRST)
    assert owners.may_search(FIRST, "one")
    assert owners.give(FIRST, "two")


def test_of_many_searches_those_not_asked_for_the_longest_time_are_new_again() -> None:
    owners = SearchOwners(kept=2)
    for search in (FIRST, SECOND, FIRST, THIRD):
        owners.give(search, "one")
    assert owners.may_search(SECOND, "two")
    assert not owners.may_search(FIRST, "two")
    assert not owners.give(THIRD, "one")


INGEST = SingleWork("ingest")
EVENT = Ingested(job="call", target="llvm", target_key="llvm", operators=[])


@pytest.fixture
def engine(context: ServerContext) -> Engine:
    return Engine(context, lambda: None)


def test_work_that_never_has_a_result_fails_its_job(engine: Engine) -> None:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    job = ActiveJob(StoredJob("j", spec, time.time(), DEVICE, {"cpu:1": granted(1)}, "llvm"), [])
    requests = 0
    while job.stored.state.open:
        job.note_requested(INGEST)
        requests += 1
        engine._request_again(job)
    assert requests == module._MOST_REQUESTS
    assert (job.stored.state, job.stored.error) == (JobState.FAILED, "JobFailed")
    assert job.stored.message.startswith(f"its work (ingest) was done {requests} times, and no result came; ")


def test_operators_that_cannot_be_stored_are_an_error_of_the_call(
    engine: Engine, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BadModel("no")

    monkeypatch.setattr(engine._ingest, "save", refuse)
    context.model_ingests.expect("call", IngestKey("a" * 64, {}, "llvm"))
    engine._take_for_job(EVENT)
    assert isinstance(context.model_ingests.forget("call"), BadModel)


def test_a_store_that_takes_nothing_ends_the_engine(
    engine: Engine, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StateUnusable("disk full")

    monkeypatch.setattr(engine._ingest, "save", refuse)
    context.model_ingests.expect("call", IngestKey("a" * 64, {}, "llvm"))
    with pytest.raises(StateUnusable):
        engine._take_for_job(EVENT)


def a_job(token: str, *requested: SingleWork) -> ActiveJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    stored = StoredJob("j", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", token=token)
    return ActiveJob(stored, [], requested=set(requested))


def turns(workers: int, jobs: Sequence[ActiveJob]) -> CompileTurns:
    made = CompileTurns()
    made.note_workers(workers)
    made.recount(jobs)
    return made


READ = a_job("greedy", SingleWork("ingest"))
COMPILE = a_job("greedy", SingleWork("compile"))
TIME = a_job("greedy", SingleWork("time_model"))
NEXT = a_job("greedy")


def test_a_token_has_two_pieces_for_each_worker_and_others_have_their_own() -> None:
    assert turns(1, [READ, TIME]).is_free(NEXT)
    assert not turns(1, [READ, COMPILE]).is_free(NEXT)
    assert turns(1, [READ, COMPILE]).is_free(a_job("other"))
    assert turns(2, [READ, COMPILE]).is_free(NEXT)
    assert not turns(0, [READ, COMPILE]).is_free(NEXT)


def test_a_piece_counts_until_its_job_has_its_result() -> None:
    held = turns(1, [READ])
    held.take(NEXT)
    assert not held.is_free(NEXT)
    held.recount([])
    assert held.is_free(NEXT)


def test_a_bundle_waits_for_its_turn_and_nothing_is_computed_for_it() -> None:
    unused: Any = None
    job = a_job("greedy")
    job.enter(JobState.COMPILING)
    PublishPhase(unused, unused, unused, turns(1, [READ, COMPILE])).compile(job)
    assert not job.requested
