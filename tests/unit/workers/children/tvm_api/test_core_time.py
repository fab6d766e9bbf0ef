"""What counts of a timing on a CPU: made-up clocks, and a real process on the same core."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest

from fractune_workers.children.tvm_api.processor import core_times

CALL_S = 1e-3
DEADLINE_S = 30.0


@dataclass
class Clocks:
    """A kernel of CALL_S, and the two clocks that tick while it runs."""

    thread_s: float = 0.0
    timed_stalls_s: list[float] = field(default_factory=list)
    """how long the thread was kept from its core, by repeat; none after the last"""
    overhead_s: float = 0.0
    """on the core, beside the calls"""
    asked: list[int] = field(default_factory=list)

    def evaluate(self, calls: int) -> float:
        self.asked.append(calls)
        self.thread_s += (calls + 1) * CALL_S + self.overhead_s
        stall_s = self.timed_stalls_s.pop(0) if self.timed_stalls_s else 0.0
        return CALL_S + stall_s / calls


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr("fractune_workers.children.tvm_api.processor.time.thread_time", lambda: made.thread_s)
    return made


def test_what_the_thread_was_kept_from_its_core_for_does_not_count(clocks: Clocks) -> None:
    clocks.timed_stalls_s = [0.0, 0.5, 0.02]
    assert core_times(clocks.evaluate, 4, 0.01, calls=10) == pytest.approx([CALL_S] * 4)


def test_undisturbed_it_is_the_wall_clock_without_what_is_beside_the_calls(clocks: Clocks) -> None:
    clocks.overhead_s = 0.004
    assert core_times(clocks.evaluate, 3, 0.01, calls=10) == pytest.approx([CALL_S] * 3)


def test_a_repeat_that_is_too_short_is_made_again_and_longer(clocks: Clocks) -> None:
    run_secs = core_times(clocks.evaluate, 3, 0.01)
    assert len(run_secs) == 3
    assert clocks.asked == [1, 11, 11, 11]


def test_a_stall_makes_no_repeat_long_enough(clocks: Clocks) -> None:
    """The wall clock alone would have taken the first, which is a single call."""
    clocks.timed_stalls_s = [1.0]
    core_times(clocks.evaluate, 2, 0.01)
    assert clocks.asked == [1, 11, 11]


def test_warm_ups_are_dropped(clocks: Clocks) -> None:
    clocks.overhead_s = 0.022
    clocks.timed_stalls_s = [1.0]  # in the warm-up, where the overhead of the calls shows: it is dropped
    assert core_times(clocks.evaluate, 2, 0.01, calls=10, warmups=1) == pytest.approx([CALL_S] * 2)
    assert clocks.asked == [10] * 3


def test_what_takes_long_warms_up_with_the_call_before_it(clocks: Clocks) -> None:
    assert len(core_times(clocks.evaluate, 3, CALL_S / 2, warmups=1)) == 3
    assert clocks.asked == [1] * 3


def test_a_kernel_too_short_for_the_clocks_ends(clocks: Clocks) -> None:
    asked: list[int] = []

    def evaluate(calls: int) -> float:
        asked.append(calls)
        clocks.thread_s += (calls + 1) * 1e-9 if calls > 1000 else 0.0
        return 1e-9

    assert core_times(evaluate, 1, 1e-4) == pytest.approx([1e-9])
    assert asked[-1] * 1e-9 >= 1e-4


def test_a_busy_process_on_the_same_core_does_not_count() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    walls_s: list[float] = []

    def evaluate(calls: int) -> float:
        spin()
        began = time.perf_counter()
        for _ in range(calls):
            spin()
        walls_s.append((time.perf_counter() - began) / calls)
        return walls_s[-1]

    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:  # it inherits the core
            try:
                deadline, ratio = time.monotonic() + DEADLINE_S, 1.0
                while ratio > 0.8 and time.monotonic() < deadline:
                    walls_s.clear()
                    core_s = statistics.median(core_times(evaluate, 5, 0.02, calls=20))
                    ratio = core_s / statistics.median(walls_s)
            finally:
                busy.kill()
    finally:
        os.sched_setaffinity(0, allowed)
    assert ratio <= 0.8


def spin() -> None:
    """About a millisecond of work."""
    sum(range(50_000))
