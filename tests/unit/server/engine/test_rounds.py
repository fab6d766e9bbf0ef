"""Which rounds there are, by who searches and what is searched, and which jobs wait for the same rounds."""

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
from fractune_core.records import Kind, Status, TuningRecord
from fractune_server.engine import engine as module
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.engine.engine import Engine
from fractune_server.engine.ingest import CompileTurns
from fractune_server.engine.publish import PublishPhase
from fractune_server.engine.rounds import LiveRound, Rounds, SearchOwners
from fractune_server.engine.tune import TunePhase
from fractune_server.scheduler.allocation import OperatorPlan
from fractune_server.scheduler.fair_queue import Claimant, FairQueue
from fractune_server.store.jobs import Round, StoredJob, StoredOperator
from fractune_server.store.records.log import LogKey
from fractune_server.store.store import IngestKey, Store
from fractune_server.transport.context import ServerContext
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import BUILD
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, granted, validation
from tests.support.secret import SECRET

SHARES = {"cpu:1": granted(1), "cpu:2": granted(2), "cpu:4": granted(4)}


def job(name: str, *shares: str, spec: dict[str, Any] | None = None, **stored: Any) -> ActiveJob:
    """One that searches a single operator."""
    wanted = JobSpec(model="a" * 64, model_name="m", shares=shares, **{"trials": 8, **(spec or {})})
    base = StoredJob(name, wanted, 1.0, DEVICE, {share: SHARES[share] for share in shares}, "llvm", JobState.TUNING)
    whole = replace(base, **{"target_key": TARGET_KEY, **stored})
    made = ActiveJob(whole, [StoredOperator(WORKLOAD, "conv", 1, selected=True)])
    made.plans[WORKLOAD] = OperatorPlan(WORKLOAD, 1, made.share_keys)
    return made


@pytest.fixture
def phase() -> TunePhase:
    context: Any = SimpleNamespace(store=None)
    rounds: Any = SimpleNamespace(trials=list)
    made = TunePhase(context, rounds, FairQueue())
    made._offered = {(DEVICE.key, "cpu:1"), (DEVICE.key, "cpu:2")}
    return made


OWNER = job("owner", "cpu:1")


@pytest.mark.parametrize(
    ("other", "takes"),
    [
        (job("equal", "cpu:1"), True),
        (job("at other shares", "cpu:2"), True),
        (job("at a share without a measurer", "cpu:1", "cpu:4"), False),
        (job("for another target", "cpu:1", target_key='{"kind":"llvm","mcpu":"other"}'), False),
        (job("on another device", "cpu:1", device=replace(DEVICE, units=8)), False),
        (job("of other implementations", "cpu:1", spec={"exact": True}), False),
        (job("of another namespace", "cpu:1", spec={"namespace": "acme"}), False),
        (job("fresh", "cpu:1", spec={"fresh": True}), False),
        (job("that searches nothing", "cpu:1", spec={"rerank": 1}), False),
        (job("that has ended its search", "cpu:1", state=JobState.VALIDATING), False),
        (job("whose time is up", "cpu:1", spec={"minutes": 1.0}, tuning_began=0.0), False),
    ],
    ids=lambda value: value.id if isinstance(value, ActiveJob) else "",
)
def test_who_can_use_a_round(phase: TunePhase, other: ActiveJob, takes: bool) -> None:  # noqa: FBT001
    assert phase._would_take(other, OWNER.log_key(WORKLOAD)) == takes


def test_a_job_that_has_its_trials_takes_no_more(phase: TunePhase) -> None:
    other = job("full", "cpu:1")
    for number in range(8):
        other.plans[WORKLOAD].add_trial(str(number), SHARES["cpu:1"].key, 1.0)
    assert not phase._would_take(other, OWNER.log_key(WORKLOAD))


def trial(trace: str, units: int, **changes: Any) -> TuningRecord:
    fields: dict[str, Any] = {"record_id": f"{trace}@{units} trial", "kind": Kind.TRIAL, **changes}
    return replace(validation(trace, units, 1.0), **fields)


def live_round(*subscribers: ActiveJob) -> LiveRound:
    asker = subscribers[0]
    stored = Round("r", asker.id, Kind.TRIAL, WORKLOAD, "tune-1", 2, granted=dict(asker.stored.granted))
    return LiveRound(stored, asker.log_key(WORKLOAD), DEVICE, "default", {each.id: each for each in subscribers})


def take(live: LiveRound, *records: TuningRecord) -> None:
    for record in records:
        for each in live.subscribers.values():
            each.take_trial(record)
        live.take(record)


def test_a_round_goes_on_where_late_jobs_lack_what_ran_well() -> None:
    first, late = job("first", "cpu:1"), job("late", "cpu:1", "cpu:2")
    live = live_round(first, late)
    good, bad = trial("good", 1), trial("bad", 1, run_secs=(), status=Status.RUN_FAILED)
    live.propose([good.candidate_id, bad.candidate_id])
    take(live, good, bad)
    assert not live.missing
    assert live.widen()
    assert live.missing == {(good.candidate_id, "cpu:2")}
    assert (live.is_due({"cpu:1"}), live.is_due({"cpu:2"})) == (False, True)
    take(live, trial("good", 2))
    assert not live.widen()
    assert late.plans[WORKLOAD].complete == 1


def test_trials_count_for_the_job_that_asked_first_and_the_others_see_them_as_shared() -> None:
    first, other = job("first", "cpu:1"), job("other", "cpu:1", "cpu:2")
    for each in (first, other):
        each.stored.progress.known = 0
    take(live_round(first, other), trial("a", 1, job="first"), trial("a", 2, job="first"), trial("b", 1, job="first"))
    take(live_round(first, other), trial("b", 2, job="other"))
    for each in (first, other):
        each.count_progress()
    counted = [(each.stored.progress.done, each.stored.progress.shared) for each in (first, other)]
    assert counted == [(2, 0), (1, 1)]
    assert first.stored.progress.by_share == {"cpu:1": 2}, "what it did not ask for is not among its trials"


def test_counts_are_the_same_when_they_are_read_from_the_log(store: Store) -> None:
    store.log.add([trial("before", 1, job="x"), trial("before", 2, job="x")])
    began = job("j", "cpu:1", "cpu:2")
    began.load_plans(store)
    assert began.stored.progress.known == 1
    new = [trial(name, units, job=name) for name in ("x", "j") for units in (1, 2)]
    store.log.add(new)
    for record in new:
        began.take_trial(record)
    again = job("j", "cpu:1", "cpu:2", progress=began.stored.progress)
    again.load_plans(store)
    for each in (began, again):
        each.count_progress()
        assert (each.gained, each.stored.progress.done, each.stored.progress.shared) == (2, 1, 1)


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
