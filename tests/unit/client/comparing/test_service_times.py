"""Wall time and CPU time of single inferences, by a clock that only calls and pauses move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fractune.comparing import interleaved
from fractune.comparing.interleaved import time_services
from fractune_runtime import runner

SPUN_S = 0.002
"""CPU time in a pause"""


class Clock:
    """In place of `time`: the CPU time of calls is twice their wall time, that of a pause is fixed."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.used_s = 0.0
        self.order: list[int] = []

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter

    def process_time(self) -> float:
        return self.used_s

    def sleep(self, secs: float) -> None:
        self.now_s += secs
        self.used_s += SPUN_S

    def call(self, threads: int, secs: float) -> Callable[[], None]:
        def call() -> None:
            self.now_s += secs
            self.used_s += 2 * secs
            if self.order[-1:] != [threads]:
                self.order.append(threads)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (interleaved, runner):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(interleaved, "wait_for_quiet", lambda: None)
    return made


def test_each_inference_is_kept_and_pauses_have_their_own_cpu_time(clock: Clock) -> None:
    times = time_services({1: clock.call(1, 0.03), 2: clock.call(2, 0.0001)}, 3, 60.0)
    one, two = times[1], times[2]
    assert one.loop_secs == pytest.approx([0.03] * 4 * 3)  # no loop is shorter than 0.1 s and 4 calls
    assert two.loop_secs == pytest.approx([0.0001] * 200 * 3)
    for each in (one, two):
        assert each.loop_cpu_s == pytest.approx(2 * sum(each.loop_secs))
        assert each.pause_cpu_s == pytest.approx(SPUN_S * len(each.paced_secs))
        assert len(each.paced_secs) == 4 * 3


def test_numbers_of_threads_are_interleaved_in_both_orders(clock: Clock) -> None:
    time_services({1: clock.call(1, 0.01), 2: clock.call(2, 0.01), 4: clock.call(4, 0.01)}, 3, 60.0)
    assert clock.order == [1, 2, 4, 2, 1, 2, 4]


def test_a_slow_model_gets_fewer_rounds_but_five(clock: Clock) -> None:
    assert len(time_services({1: clock.call(1, 10.0)}, 20, 60.0)[1].paced_secs) == 4 * 5
