"""Variants under a CPU limit, on real threads; the calls are made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from fractune_workers.children.measuring import model_timing
from fractune_workers.children.measuring.model_timing import time_under_limit

SHORT_S, PERIOD_S = 2e-4, 2e-3
CPUS = [0, 1]


def sleeps(secs: float, seen: set[str]) -> Callable[[], None]:
    def call() -> None:
        seen.add(threading.current_thread().name)
        time.sleep(secs)

    return call


def test_each_variant_has_a_thread_for_each_of_its_cores_and_the_same_requests() -> None:
    one, two = set[str](), set[str]()
    calls = {"untuned": sleeps(1.0, set()), "cpu:1": sleeps(SHORT_S, one), "cpu:2": sleeps(SHORT_S, two)}
    found = time_under_limit(calls, {"cpu:1": 1, "cpu:2": 2}, CPUS, PERIOD_S)
    assert [(each.variant, each.threads) for each in found] == [("cpu:1", 1), ("cpu:2", 2)]
    assert {len(each.loop_secs) for each in found} == {11}
    assert len({len(each.latency_secs) for each in found}) == 1
    assert len(found[0].latency_secs) >= 110
    assert one == {threading.current_thread().name}, "a model of one thread runs on its caller's"
    assert two == {"fractune-run"}


def test_a_round_has_requests_for_several_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = time_under_limit({"cpu:1": sleeps(SHORT_S, set())}, {"cpu:1": 1}, CPUS, 20 * PERIOD_S)
    requests = len(found.latency_secs) // len(found.loop_secs)
    assert 10 < requests <= 200
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS", 12)
    (found,) = time_under_limit({"cpu:1": sleeps(SHORT_S, set())}, {"cpu:1": 1}, CPUS, 20 * PERIOD_S)
    assert len(found.latency_secs) == 12 * 11


def test_a_slow_model_has_fewer_requests_and_at_least_one_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_timing, "_MOST_S", 0.01)
    (found,) = time_under_limit({"cpu:1": sleeps(0.005, set())}, {"cpu:1": 1}, CPUS, PERIOD_S)
    assert (len(found.loop_secs), len(found.latency_secs)) == (6, 6)
