"""Requests that arrive at random: a request counts from its arrival, and waits for those before it."""

from __future__ import annotations

import random

import pytest

from fractune_core.served import latencies, poisson


class Clock:
    """Time that passes only in calls and sleeps; a timer wakes late by `late_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 100.0, late_s
        monkeypatch.setattr("fractune_core.served.time", self)

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, secs: float) -> None:
        self.now_s += secs + self.late_s

    def work(self, secs: float) -> None:
        self.now_s += secs


def test_a_request_waits_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert latencies(lambda: clock.work(2.0), [1.0, 2.0, 2.5, 20.0]) == pytest.approx([2.0, 3.0, 4.5, 2.0])


def test_the_delay_of_a_timer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, late_s=0.25)
    assert latencies(lambda: clock.work(2.0), [1.0, 2.0, 20.0]) == pytest.approx([2.0, 3.25, 2.0])


def test_arrivals_have_the_rate_and_follow_from_the_seed() -> None:
    arrivals_s = poisson(50.0, 2_000, random.Random(1))
    assert arrivals_s == poisson(50.0, 2_000, random.Random(1))
    assert arrivals_s == sorted(arrivals_s)
    assert arrivals_s[-1] == pytest.approx(40.0, rel=0.1)
