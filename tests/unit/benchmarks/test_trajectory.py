from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

WEIGHTS = {"a": 2, "b": 1}
TRIALS = [
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
    assert latencies(TRIALS, WEIGHTS) == [(3.0, 14.0), (5.0, 10.0)]
    assert final_latency(TRIALS, WEIGHTS) == 10.0


def test_an_operator_without_a_time_makes_the_latency_infinite() -> None:
    assert latencies(TRIALS[:2], WEIGHTS) == []
    assert final_latency(TRIALS[:2], WEIGHTS) == math.inf
    assert moment_of(TRIALS[:2], WEIGHTS, 100.0) == math.inf


@pytest.mark.parametrize(("latency_s", "moment"), [(20.0, 3.0), (14.0, 3.0), (13.9, 5.0), (10.0, 5.0), (9.9, math.inf)])
def test_the_moment_at_which_a_latency_was_first_held(latency_s: float, moment: float) -> None:
    assert moment_of(TRIALS, WEIGHTS, latency_s) == moment


def test_the_best_trial_of_each_operator_up_to_a_moment() -> None:
    assert {name: trial.trace for name, trial in best(TRIALS).items()} == {"a": "a3", "b": "b1", "c": "c1"}
    assert {name: trial.trace for name, trial in best(TRIALS, 4.0).items()} == {"a": "a1", "b": "b1"}


def test_the_incumbents_and_what_they_are_worth_when_timed_again() -> None:
    held = incumbents(TRIALS[:5])
    assert [trial.trace for trial in held] == ["a1", "b1", "a3"]
    worth = {"a1": 4.0, "b1": 3.0, "a3": 6.0}
    curve = held_curve([Trial(t.at_s, t.operator, worth[t.trace]) for t in held], WEIGHTS)
    assert curve == [(3.0, 11.0), (5.0, 15.0)]  # the tuner was mistaken in a3, and holds it all the same
    assert first_held(curve, 11.0) == 3.0
    assert first_held(curve, 10.9) == math.inf


@given(trials)
def test_incumbents_at_their_own_times_make_the_curve_of_latencies(found: list[Trial]) -> None:
    curve, expected = held_curve(incumbents(found), WEIGHTS), latencies(found, WEIGHTS)
    assert [moment for moment, _ in curve] == [moment for moment, _ in expected]
    assert [secs for _, secs in curve] == pytest.approx([secs for _, secs in expected])


@given(trials)
def test_a_run_holds_its_final_latency_from_its_last_gain_on(found: list[Trial]) -> None:
    curve = latencies(found, WEIGHTS)
    assert [secs for _, secs in curve] == sorted((secs for _, secs in curve), reverse=True)
    assert moment_of(found, WEIGHTS, final_latency(found, WEIGHTS)) <= (curve[-1][0] if curve else math.inf)
    held = best(found)
    if curve:
        assert curve[-1][1] == pytest.approx(sum(WEIGHTS[name] * trial.secs for name, trial in held.items()))


@given(trials)
def test_the_order_in_which_trials_are_told_does_not_matter(found: list[Trial]) -> None:
    assert final_latency(found, WEIGHTS) == pytest.approx(final_latency(found[::-1], WEIGHTS))
