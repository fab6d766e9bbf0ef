"""The sums over all workers: they never go down, and count nothing twice."""

from dataclasses import replace
from typing import Any

import pytest

from fractune_core.fleet.messages import WorkerInfo
from fractune_core.fleet.redis_names import WORKER_TTL_S
from fractune_core.fleet.redis_state import COUNT, CountKey
from fractune_server import instruments
from fractune_server.instruments import WorkerTotals
from tests.support.fleet_messages import worker_info

KEY = CountKey("remeasured", "cpu:1", COUNT)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def totals(clock: Clock) -> WorkerTotals:
    return WorkerTotals(clock)


def entry(name: str, count: float, started_at: float = 1.0, uptime_s: float = 0.0, **more: Any) -> WorkerInfo:
    told = {"uptime_s": uptime_s, "counts": [(*KEY, count)], "share": "cpu:1", **more}
    return replace(worker_info(name, started_at, "measure"), **told)


def test_workers_are_added_up(totals: WorkerTotals) -> None:
    totals.take([entry("a", 2), entry("b", 3)])
    totals.take([entry("a", 5), entry("b", 3)])
    assert totals.totals() == {KEY: 8}


def test_what_a_worker_counted_outlives_it_and_its_successor_counts_on(totals: WorkerTotals) -> None:
    totals.take([entry("a", 5)])
    totals.take([])
    assert totals.totals() == {KEY: 5}
    totals.take([entry("a", 1, started_at=2.0)])
    totals.take([entry("a", 2, started_at=2.0)])
    assert totals.totals() == {KEY: 7}


def test_a_worker_that_was_out_of_sight_is_not_counted_twice(totals: WorkerTotals) -> None:
    totals.take([entry("a", 5)])
    totals.take([])
    totals.take([entry("a", 6)])
    assert totals.totals() == {KEY: 6}


def test_what_was_counted_before_this_server_began_is_left_out(totals: WorkerTotals, clock: Clock) -> None:
    clock.now += 10.0
    totals.take([entry("older", 100, uptime_s=500.0), entry("younger", 1, uptime_s=9.0)])
    assert totals.totals() == {KEY: 1}
    totals.take([entry("older", 102, uptime_s=501.0), entry("younger", 1, uptime_s=10.0)])
    assert totals.totals() == {KEY: 3}


def test_a_sum_never_goes_down(totals: WorkerTotals) -> None:
    totals.take([entry("a", 5)])
    totals.take([entry("a", 4)])
    assert totals.totals() == {KEY: 5}


def test_live_workers_by_role_share_and_state(totals: WorkerTotals) -> None:
    totals.take([entry("a", 1), entry("b", 1, state="busy"), entry("c", 1), entry("d", 1, role="build", share="")])
    assert totals.live() == {
        ("measure", "cpu:1", "idle"): 2,
        ("measure", "cpu:1", "busy"): 1,
        ("build", "", "idle"): 1,
    }


def test_when_nobody_could_look_for_long_no_worker_is_claimed_to_live(totals: WorkerTotals, clock: Clock) -> None:
    assert totals.live() is None
    totals.take([entry("a", 1)])
    clock.now += WORKER_TTL_S + 1
    assert totals.live() is None
    assert totals.totals() == {KEY: 1}


def test_the_memory_for_starts_of_workers_is_bounded(totals: WorkerTotals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "_REMEMBERED", 3)
    totals.take([entry(f"w{number}", 1) for number in range(5)])
    assert len(totals._heard) == 3
    assert totals.totals() == {KEY: 5}
