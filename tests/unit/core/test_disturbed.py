"""When a time counts as disturbed, its bounds, and how often it is taken again."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator

import pytest

from fractune_core.analysis.slowdown_ci import Slowdown
from fractune_core.disturbed import is_disturbed, kept_part, timed_quietly


@pytest.mark.parametrize(
    ("others_cores", "cores", "kept"), [(0.0, 1, 1.0), (0.2, 1, 1.0), (0.25, 1, 0.75), (0.8, 2, 0.6), (2.1, 2, 0.01)]
)
def test_a_model_kept_what_others_left_of_its_cores(others_cores: float, cores: int, kept: float) -> None:
    assert is_disturbed(others_cores) is (kept < 1)
    assert kept_part(others_cores, cores) == pytest.approx(kept)


def test_an_interval_reaches_down_to_what_the_lost_cores_explain() -> None:
    found = Slowdown(0.1, 0.05, 0.2).widened(0.5, 0.8)
    assert (found.median, found.low, found.high) == pytest.approx((0.1, 1.05 * 0.5 - 1, 1.2 / 0.8 - 1))
    same = Slowdown(0.1, 0.05, 0.2).widened(1.0, 1.0)
    assert (same.low, same.high) == pytest.approx((0.05, 0.2))
    assert math.isnan(Slowdown(0.1, math.nan, math.nan).widened(0.5, 0.5).low)


class Machine:
    """Timings, and looks between them, find other programs with so many cores."""

    def __init__(self, timings: list[float], looks: Iterator[float]) -> None:
        self._timings, self._looks = iter(timings), looks
        self.looks = 0
        self.waited = 0

    def timed(self) -> tuple[str, float]:
        self.waited, self.looks = self.looks, 0
        found = next(self._timings)
        return f"time beside {found}", found

    def look(self, secs: float) -> float:
        assert 0 < secs < 1
        self.looks += 1
        return next(self._looks)


@pytest.mark.parametrize(
    ("timings", "least"), [([0.1], 0.1), ([0.9, 0.0], 0.0), ([0.9, 0.5, 0.1], 0.1), ([0.5, 0.9, 0.7], 0.5)]
)
def test_a_disturbed_timing_is_repeated_twice_at_most_and_the_best_counts(timings: list[float], least: float) -> None:
    machine = Machine(timings, itertools.repeat(0.0))
    assert timed_quietly(machine.timed, machine.look) == (f"time beside {least}", least)


def test_it_is_repeated_when_the_machine_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.chain([0.0, 10.0, 10.0], itertools.count(11.0, 1.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    machine = Machine([0.9, 0.0], iter([0.9, 0.0]))
    assert timed_quietly(machine.timed, machine.look) == ("time beside 0.0", 0.0)
    assert machine.waited == 2


def test_it_does_not_wait_for_a_quiet_machine_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.chain([0.0, 500.0, 500.0], itertools.count(501.0, 1.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    machine = Machine([0.9], itertools.repeat(0.9))
    assert timed_quietly(machine.timed, machine.look) == ("time beside 0.9", 0.9)
    assert machine.looks == 60, "a second each, although the timing took 500 s"
