"""Which jobs wait for the same rounds."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Kind, Status, TuningRecord
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.rounds import LiveRound
from fractune_server.engine.tune import TunePhase
from fractune_server.scheduler.allocation import OperatorPlan
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.store.jobs import Round, StoredJob, StoredOperator
from fractune_server.store.store import Store
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, granted, validation

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
        (job("at a share that nobody measures", "cpu:1", "cpu:4"), False),
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
