"""A job that runs: the trials that it plans and counts, its clock, and jobs at CPU limits."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Kind, Status
from fractune_core.shares import with_kernel_shares
from fractune_server.engine import active_job as module
from fractune_server.engine.active_job import ActiveJob, TrialCounts, inside_ratios, kernel_share_notes, tuned_before
from fractune_server.engine.tune import TunePhase
from fractune_server.scheduler.allocation import OperatorPlan
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.services.jobs import job_to_proto
from fractune_server.store.jobs import StoredJob, StoredOperator
from fractune_server.store.store import Store
from tests.support.samples import DEVICE, LIMITED, TARGET_KEY, WORKLOAD, granted, validation


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


TRIALS = st.tuples(st.sampled_from("abcd"), st.sampled_from(["cpu:1", "cpu:2", "cpu:4"]), st.sampled_from(list(Status)))


@given(st.lists(TRIALS, max_size=40))
def test_counts_are_those_of_the_distinct_trials(trials: list[tuple[str, str, Status]]) -> None:
    own, first = TrialCounts(), dict[tuple[str, str], Status]()
    for candidate, share, status in trials:
        own.add(candidate, share, status)
        first.setdefault((candidate, share), status)
    assert own.candidates == {candidate for candidate, _ in first}
    assert own.by_share == Counter(share for _, share in first)
    assert own.failures == Counter(status.value for status in first.values() if status is not Status.OK)


class Clock:
    """The time of day, which may be set, and the seconds that go by."""

    def __init__(self) -> None:
        self.day_s, self.gone_s = 1e9, 50.0

    def time(self) -> float:
        return self.day_s

    def monotonic(self) -> float:
        return self.gone_s

    def pass_by(self, secs: float) -> None:
        self.day_s += secs
        self.gone_s += secs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def a_job(clock: Clock, minutes: float = 0.0) -> ActiveJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",), minutes=minutes)
    return ActiveJob(StoredJob("j", spec, clock.day_s, DEVICE, {"cpu:1": granted(1)}, "llvm"), [])


@pytest.mark.parametrize("set_by_s", [3600.0, -86400.0])
def test_a_search_takes_its_minutes_though_the_clock_is_set(clock: Clock, set_by_s: float) -> None:
    job = a_job(clock, minutes=2)
    assert not job.time_is_up
    job.stored.tuning_began = job.now()
    assert not job.time_is_up
    clock.day_s += set_by_s
    clock.pass_by(119)
    assert not job.time_is_up
    clock.pass_by(2)
    assert job.time_is_up


def test_what_an_earlier_server_searched_counts(clock: Clock) -> None:
    job = a_job(clock, minutes=2)
    job.stored.tuning_began = clock.day_s - 90
    assert not job.time_is_up
    clock.pass_by(31)
    assert job.time_is_up


def test_no_phase_is_negative_though_the_clock_is_set_back(clock: Clock) -> None:
    job = a_job(clock)
    clock.pass_by(5)
    job.enter(JobState.INGESTING)
    clock.pass_by(5)
    clock.day_s -= 86400
    job.enter(JobState.TUNING)
    clock.pass_by(5)
    job.end(JobState.CANCELLED)
    phases = job.stored.phases_s(clock.day_s)
    assert phases == {"queued": 5.0, "ingesting": 0.0, "tuning": 0.0}
    shown = job_to_proto(job.stored)
    assert shown.progress.elapsed_s == 5.0
    assert shown.end_time.seconds >= shown.create_time.seconds


def limited(*shares: str, name: str = "new", target_key: str = "llvm", **options: Any) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=shares, **options)
    names = with_kernel_shares(shares)
    held = {each: LIMITED if each == "cpu:1500m" else granted(int(each.partition(":")[2])) for each in names}
    return StoredJob(name, spec, 1.0, DEVICE, held, "llvm", target_key=target_key)


BOTH = limited("cpu:1", "cpu:2", name="both")
ONE, TWO = limited("cpu:1", name="one"), limited("cpu:2", name="two")


def test_cores_that_a_limit_adds_are_named() -> None:
    assert list(kernel_share_notes(limited("cpu:1500m"))) == [
        "cpu:1500m: kernels are tuned at cpu:1, cpu:2, and the whole model is timed under the limit"
    ]
    (note,) = kernel_share_notes(limited("cpu:1", "cpu:1500m"))
    assert note.startswith("cpu:1500m: kernels are tuned at cpu:2, and")
    assert list(kernel_share_notes(limited("cpu:1", "cpu:2", "cpu:1500m"))) == list(kernel_share_notes(BOTH)) == []


def test_cores_that_a_range_adds_are_named_and_searched() -> None:
    assert list(kernel_share_notes(limited("cpu:1..4", "cpu:4", "cpu:1500m"))) == [
        "cpu:1500m: kernels are tuned at cpu:1, cpu:2, and the whole model is timed under the limit",
        "cpu:1..4: kernels are tuned at cpu:1, cpu:2, and one variant serves the whole range",
    ]
    assert tuned_before(limited("cpu:1..2"), [BOTH]) == []


@pytest.mark.parametrize(
    ("done", "names"),
    [
        ([BOTH], ["both"]),
        ([limited("cpu:1500m", name="limit")], ["limit"]),
        ([TWO, ONE, BOTH], ["two", "one"]),
        ([ONE], []),
        ([], []),
    ],
)
def test_whole_cores_that_jobs_have_tuned_at_are_not_searched_again(done: list[StoredJob], names: list[str]) -> None:
    assert tuned_before(limited("cpu:1500m"), done) == names


@pytest.mark.parametrize(
    "new",
    [
        limited("cpu:1", "cpu:1500m"),
        limited("cpu:1500m", extra_trials=8),
        limited("cpu:1500m", fresh=True),
        limited("cpu:1500m", exact=True),
        limited("cpu:1500m", namespace="other"),
        limited("cpu:1500m", inputs={"x": [2, 3]}),
        limited("cpu:1500m", target_key="llvm-other"),
        replace(limited("cpu:1500m"), device=replace(DEVICE, isa="other")),
    ],
)
def test_other_jobs_search(new: StoredJob) -> None:
    assert tuned_before(new, [BOTH]) == []


def test_jobs_that_searched_nothing_or_only_some_operators_do_not_count() -> None:
    assert (
        tuned_before(
            limited("cpu:1500m"),
            [limited("cpu:1", "cpu:2", rerank=1), limited("cpu:1", "cpu:2", only="conv")],
        )
        == []
    )
    assert tuned_before(limited("cpu:1500m"), [limited("cpu:1", "cpu:2", trials=0)]) == []
    assert tuned_before(limited("cpu:1500m", only="conv"), [limited("cpu:1", "cpu:2", name="c", only="conv")]) == ["c"]
    assert tuned_before(limited("cpu:1500m", only="conv"), [BOTH]) == ["both"]


SHARES = ("cpu:1", "cpu:2")


def noted_job(**timings: Any) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=SHARES)
    held = {share: granted(number) for number, share in enumerate(SHARES, 1)}
    return StoredJob("job", spec, 1.0, DEVICE, held, "llvm", target_key="llvm", timings=timings)


def timing(secs: float, *, calls: int = 2, candidate: str = "best", workload_hash: str = "conv") -> dict[str, Any]:
    call = CallTime("kernel", calls, secs, workload_hash, candidate)
    return {"inside": Inside((call, CallTime("other calls", 9, 5.0)), 6.0, 6.1).to_json()}


def ratios(*done: StoredJob) -> dict[str, float]:
    plan = OperatorPlan("conv", 2, tuple(each.key for each in noted_job().tuned_at.values()))
    for share in plan.shares:
        plan.add_trial("best", share, 1e-3)
    return inside_ratios(noted_job(), done, {"conv": plan})


def test_the_newest_job_at_each_share_says_it() -> None:
    first, second = noted_job(**{"cpu:1": timing(8e-3)}), noted_job(**{"cpu:1": timing(2e-3), "cpu:2": timing(2e-3)})
    assert ratios(first) == {"conv": pytest.approx(4.0)}
    assert ratios(first, second) == {"conv": pytest.approx(2.0)}, "the geometric mean of 4 and 1"
    assert ratios(second, first) == {"conv": pytest.approx(1.0)}


@pytest.mark.parametrize(
    "done",
    [
        noted_job(),
        noted_job(**{"cpu:1": {"inside": None}}),
        noted_job(**{"cpu:1": timing(8e-3, candidate="")}),
        noted_job(**{"cpu:1": timing(8e-3, calls=0)}),
        noted_job(**{"cpu:1": timing(0.0)}),
        noted_job(**{"cpu:1": timing(8e-3, workload_hash="gone")}),
        replace(noted_job(**{"cpu:1": timing(8e-3)}), target_key="other"),
    ],
)
def test_nothing_is_known_without_a_time_of_the_same_candidate(done: StoredJob) -> None:
    assert ratios(done) == {}
