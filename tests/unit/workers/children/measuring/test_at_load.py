"""Variants that answer random requests, on real threads; the calls are made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from fractune_core.analysis.at_load import AtLoad
from fractune_workers.children.measuring import model_timing
from fractune_workers.children.measuring.model_timing import time_at_load

SHORT_S = 2e-4


def loops(**loop_s: float) -> tuple[dict[str, Callable[[], None]], dict[str, float]]:
    return {name: partial(time.sleep, secs) for name, secs in loop_s.items()}, loop_s


def test_the_fastest_answer_the_same_number_of_requests_in_each_round() -> None:
    calls, loop_s = loops(untuned=100 * SHORT_S, own=1.2 * SHORT_S, robust=SHORT_S, other=1.1 * SHORT_S)
    found = time_at_load(calls, {**loop_s, "far": 1.6 * SHORT_S}, "own", [0])
    assert [(each.variant, each.threads) for each in found] == [("own", 1), ("robust", 1), ("other", 1)]
    assert {(len(each.loop_secs), len(each.latency_secs)) for each in found} == {(11, 110)}
    assert all(secs >= SHORT_S for each in found for secs in each.latency_secs)


@pytest.mark.parametrize(("factor", "threads"), [(1, [2, 1]), (10, [2])])
def test_one_thread_is_a_finalist_unless_it_takes_much_longer(
    factor: int, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of one thread runs on its caller's. The seconds of a loop are made up: a busy machine prolongs them."""
    ran: list[threading.Thread] = []

    def secs_of_one(call: Callable[[], None], _at_least_s: float) -> float:
        call()
        return SHORT_S * (factor if ran[-1] is threading.current_thread() else 1)

    monkeypatch.setattr(model_timing, "secs_of_one", secs_of_one)
    found = time_at_load({"own": lambda: ran.append(threading.current_thread())}, {"own": SHORT_S}, "own", [0, 1])
    assert [each.threads for each in found] == threads


def test_a_slow_model_answers_fewer_requests_and_a_very_slow_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS_S", 1.0)
    (few,) = time_at_load(*loops(own=1e-2), "own", [0])
    assert (len(few.loop_secs), len(few.latency_secs)) == (6, 12), "there is nothing to compare it with"
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS_S", 0.1)
    assert time_at_load(*loops(own=1e-2), "own", [0]) == []


@pytest.mark.parametrize(("is_decided", "rounds"), [(True, 6), (False, 11)])
def test_rounds_end_once_the_choices_are_decided(
    monkeypatch: pytest.MonkeyPatch, *, is_decided: bool, rounds: int
) -> None:
    asked = []

    def decided(timed: Sequence[AtLoad], most: int) -> bool:
        asked.append((len(timed), {len(each.loop_secs) for each in timed}, most))
        return is_decided

    monkeypatch.setattr(model_timing, "are_decided", decided)
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS_S", 0.5)
    found = time_at_load(*loops(own=5e-3, robust=5e-3), "own", [0])
    assert {len(each.loop_secs) for each in found} == {rounds}
    assert asked[0] == (2, {6}, 11)
    asked.clear()
    found = time_at_load(*loops(own=SHORT_S, robust=SHORT_S), "own", [0])
    assert {len(each.loop_secs) for each in found} == {11}, "a p99 needs all of them"
    assert not asked


def test_a_very_slow_model_is_not_even_called() -> None:
    def called() -> None:
        raise AssertionError

    assert time_at_load({"own": called}, {"own": 1.0}, "own", [0]) == []


def test_on_a_gpu_all_runs_on_this_thread() -> None:
    seen = set()

    def call() -> None:
        seen.add(threading.current_thread())
        time.sleep(SHORT_S)

    (found,) = time_at_load({"full": call}, {"full": SHORT_S}, "full", [])
    assert (found.variant, found.threads) == ("full", 1)
    assert seen == {threading.current_thread()}
