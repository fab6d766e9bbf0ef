"""The choice among variants that were timed in a loop and at 30 % load."""

from __future__ import annotations

import random

import pytest

from fractune_core.analysis.at_load import AtLoad, Served, latency_choice, throughput_choice

ROUNDS, REQUESTS = 11, 10


def timed(variant: str, loop_s: float, latency_s: float, threads: int = 2, noise: float = 0.0) -> AtLoad:
    draws = random.Random(f"{variant}{threads}")

    def noisy(secs: float) -> float:
        return secs * (1 + noise * draws.random())

    loop = tuple(noisy(loop_s) for _ in range(ROUNDS))
    return AtLoad(variant, threads, loop, tuple(noisy(latency_s) for _ in range(ROUNDS * REQUESTS)))


def test_each_goal_has_its_best() -> None:
    own, other = timed("cpu:2", 2e-3, 5e-3), timed("cpu:1", 3e-3, 4e-3, threads=1)
    assert throughput_choice([own, other]) == own
    assert latency_choice([own, other]) == other


def test_a_tie_stays_with_the_variant_of_the_share_and_with_the_choice_for_a_loop() -> None:
    own, other = timed("cpu:2", 2e-3, 5e-3, noise=0.1), timed("robust", 2e-3, 5e-3, noise=0.1)
    assert throughput_choice([own, other]) == latency_choice([own, other]) == own
    faster = timed("robust", 1e-3, 5e-3, noise=0.1)
    assert throughput_choice([own, faster]) == latency_choice([own, faster]) == faster


def test_one_slow_request_decides_nothing() -> None:
    own, other = timed("cpu:2", 2e-3, 5e-3, noise=0.1), timed("robust", 2e-3, 5e-3, noise=0.1)
    hit = AtLoad(own.variant, own.threads, own.loop_secs, (1.0, *own.latency_secs[1:]))
    assert latency_choice([hit, other]) == hit


def test_too_few_rounds_decide_nothing() -> None:
    own, other = (AtLoad(name, 1, (secs,) * 4, (secs,) * 4) for name, secs in (("cpu:1", 2.0), ("robust", 1.0)))
    assert latency_choice([own, other]) == own


def test_percentiles_are_of_all_requests_and_a_p99_needs_a_hundred() -> None:
    found = AtLoad("cpu:1", 1, (1.0,) * 10, tuple(float(each) for each in range(100)))
    assert (found.p50_s, found.p99_s) == (49.5, 98.0)
    assert found.round_means_s == pytest.approx([4.5 + 10 * number for number in range(10)])
    few = AtLoad("cpu:1", 1, (1.0,) * 9, found.latency_secs[:90])
    assert Served.of(few) == Served("cpu:1", 1, 1.0, few.p50_s, None)
    assert AtLoad.from_json(few.to_json()) == few
