"""The number of trials that a job plans: the same from the start of its search to the end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Kind
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.tune import TunePhase
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.store.store import Store
from fractune_server.store.stored_job import StoredJob, StoredOperator
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, granted, validation


def job(trials: int, operators: int = 1, **spec: Any) -> ActiveJob:
    wanted = JobSpec(model="a" * 64, model_name="m", shares=("cpu:1",), trials=trials, **spec)
    stored = StoredJob("j", wanted, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", JobState.TUNING, target_key=TARGET_KEY)
    names = [WORKLOAD, *(f"{number:016x}" for number in range(1, operators))]
    return ActiveJob(stored, [StoredOperator(name, "conv", 1, selected=True) for name in names])


@pytest.fixture
def phase(store: Store) -> TunePhase:
    rounds: Any = SimpleNamespace(trials_for=lambda _: [], leave=lambda _: None)
    context: Any = SimpleNamespace(store=store)
    return TunePhase(context, rounds, FairQueue())


def planned(tuned: ActiveJob) -> int:
    tuned.count_progress()
    return tuned.stored.progress.planned


def test_results_of_a_round_do_not_change_the_planned_trials(phase: TunePhase) -> None:
    tuned = job(8)
    phase.begin(tuned)
    tuned.count_in_progress(WORKLOAD, busy=True, in_flight=8)
    for number in range(8):
        assert planned(tuned) == 8
        tuned.take_trial(replace(validation(str(number), 1, 1.0), kind=Kind.TRIAL, workload_hash=WORKLOAD))
    assert (planned(tuned), tuned.gained) == (8, 8)


@pytest.mark.parametrize(
    ("trials", "spec", "notes"),
    [
        (16, {}, ["24 trials, one for each operator; 16 were requested"]),
        (0, {}, ["no search with 0 trials: the computed first candidate of each operator is measured, 24 in all"]),
        (24, {}, []),
        (16, {"extra_trials": 30}, []),
        (0, {"rerank": 1}, []),
    ],
)
def test_a_job_says_from_the_start_that_every_operator_gets_a_trial(
    phase: TunePhase, trials: int, spec: dict[str, Any], notes: list[str]
) -> None:
    tuned = job(trials, operators=24, **spec)
    phase.begin(tuned)
    assert tuned.stored.notes == notes


def test_a_job_says_why_it_ends_before_its_trials(phase: TunePhase) -> None:
    tuned = job(8)
    phase.begin(tuned)
    tuned.space_exhausted(WORKLOAD)
    phase.advance(tuned, [tuned])
    assert tuned.stored.state is JobState.VALIDATING
    (note,) = tuned.stored.notes
    assert note.startswith("8 trials are not used: the operators have no further candidates")


def test_a_job_says_that_nothing_is_left_to_gain(phase: TunePhase) -> None:
    tuned = job(64, operators=2)
    phase.begin(tuned)
    for name, secs in zip(tuned.plans, (1.0, 0.008), strict=True):
        tuned.take_trial(replace(validation(name, 1, secs), kind=Kind.TRIAL, workload_hash=name))
    heavy = next(iter(tuned.plans.values()))
    assert tuned.remaining == 62
    heavy.set_attainable(dict.fromkeys(heavy.shares, 0.95))
    phase.advance(tuned, [tuned])
    assert tuned.stored.state is JobState.VALIDATING
    assert tuned.stored.notes == ["nothing left to gain: further trials could save 0.8% of the time at most"]
    assert tuned.stored.progress.saved == 62
