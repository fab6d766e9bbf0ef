"""Interleaved timings of finalists and of single inferences, by a clock that only calls and pauses move."""

import threading
from collections.abc import Callable

import pytest

from fractune.comparing import interleaved
from fractune.comparing.interleaved import PAUSE_S, Times, serve, time_interleaved, time_loops, time_services
from fractune_runtime import runner


class Clock:
    """In place of `time`: what went on, and when."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s = 0.0
        self.seen: list[str] = []
        """names of calls; `.` for a pause"""

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.now_s - self.slept_s

    def sleep(self, secs: float) -> None:
        self.now_s += secs
        self.slept_s += secs
        self.seen.append(".")

    def calls(self, name: str, secs: float, after_pause_s: float | None = None) -> Callable[[], None]:
        """Calls that take so long, and in place of it `after_pause_s` where a pause was before."""

        def call() -> None:
            paused = self.seen[-1:] == ["."]
            self.now_s += secs if after_pause_s is None or not paused else after_pause_s
            self.seen.append(name)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (interleaved, runner):
        monkeypatch.setattr(module, "time", made)
    return made


def test_rounds_go_forth_and_back(clock: Clock) -> None:
    times = time_interleaved({"a": clock.calls("a", 1.0), "b": clock.calls("b", 2.0)}, 3)
    assert "".join(clock.seen) == "ab" + "a.ab.b" + "b.ba.a" + "a.ab.b"
    assert times == {"a": Times([1.0] * 3, [1.0] * 3), "b": Times([2.0] * 3, [2.0] * 3)}


def test_loops_alone_have_no_pause_and_each_follows_a_call_that_does_not_count(clock: Clock) -> None:
    times = time_loops({"a": clock.calls("a", 0.015), "b": clock.calls("b", 2.0)}, 2)
    assert "".join(clock.seen) == "aaa" + "bb" + "bb" + "aaa"
    assert times == {"a": [pytest.approx(0.015)] * 2, "b": [2.0] * 2}


def test_apart_they_wait_for_each_other_s_threads_and_a_call_that_warms_up_does_not_count(clock: Clock) -> None:
    times = time_interleaved({"a": clock.calls("a", 1.0, after_pause_s=5.0), "b": clock.calls("b", 2.0)}, 1, apart=True)
    assert "".join(clock.seen) == "ab" + ".aa.a" + ".bb.b"
    assert times["a"] == Times([1.0], [5.0])


def test_a_loop_has_no_pause_and_every_paced_call_has_one(clock: Clock) -> None:
    times = time_interleaved({"a": clock.calls("a", 0.004, after_pause_s=0.007)}, 1)
    assert "".join(clock.seen) == "a" + "aaaaa" + ".a.a.a"
    assert times["a"].loop_secs == [pytest.approx(0.004)]
    assert times["a"].paced_secs == [pytest.approx(0.007)]
    assert clock.slept_s == pytest.approx(3 * PAUSE_S)


def test_what_takes_long_is_called_once_a_turn(clock: Clock) -> None:
    time_interleaved({"a": clock.calls("a", 0.015)}, 1)
    assert "".join(clock.seen) == "a" + "aa" + ".a.a"


@pytest.mark.parametrize(("secs", "timings"), [(0.001, 9), (0.3, 4), (6.0, 1)])
def test_a_brief_finalist_has_fewer_rounds_if_its_calls_take_long(clock: Clock, secs: float, timings: int) -> None:
    finalists = {"slow": clock.calls("s", secs), "fast": clock.calls("f", 0.1)}
    times = time_interleaved(finalists, 9, brief="slow")
    assert {name: len(each.loop_secs) for name, each in times.items()} == {"slow": timings, "fast": 9}
    assert len(times["slow"].paced_secs) == timings
    assert clock.seen[0] == "f", "no call of it to warm up"


SPUN_S = 0.002
"""CPU time in a pause"""


class SpinningClock:
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
def spinning(monkeypatch: pytest.MonkeyPatch) -> SpinningClock:
    made = SpinningClock()
    for module in (interleaved, runner):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(interleaved, "wait_for_quiet", lambda: None)
    return made


def test_each_inference_is_kept_and_pauses_have_their_own_cpu_time(spinning: SpinningClock) -> None:
    times = time_services({1: spinning.call(1, 0.03), 2: spinning.call(2, 0.0001)}, 3, 60.0)
    one, two = times[1], times[2]
    assert one.loop_secs == pytest.approx([0.03] * 4 * 3)  # no loop is shorter than 0.1 s and 4 calls
    assert two.loop_secs == pytest.approx([0.0001] * 200 * 3)
    for each in (one, two):
        assert each.loop_cpu_s == pytest.approx(2 * sum(each.loop_secs))
        assert each.pause_cpu_s == pytest.approx(SPUN_S * len(each.paced_secs))
        assert len(each.paced_secs) == 4 * 3


def test_numbers_of_threads_are_interleaved_in_both_orders(spinning: SpinningClock) -> None:
    time_services({1: spinning.call(1, 0.01), 2: spinning.call(2, 0.01), 4: spinning.call(4, 0.01)}, 3, 60.0)
    assert spinning.order == [1, 2, 4, 2, 1, 2, 4]


def test_a_slow_model_gets_fewer_rounds_but_five(spinning: SpinningClock) -> None:
    assert len(time_services({1: spinning.call(1, 10.0)}, 20, 60.0)[1].paced_secs) == 4 * 5


def test_each_request_counts_from_its_arrival_and_replicas_work_side_by_side() -> None:
    """Two requests arrive at once, and each replica ends only when the other one has begun."""
    meet = threading.Barrier(2, timeout=30)
    found = serve([meet.wait, meet.wait], [0.0, 0.0])
    assert len(found["latencies_s"]) == 2
    assert found["elapsed_s"] >= max(found["latencies_s"])


def test_requests_count_from_their_arrival_and_a_loop_has_none() -> None:
    found = serve([lambda: None], [0.0, 0.02])
    assert found["elapsed_s"] >= 0.02
    assert min(found["latencies_s"]) >= 0
    calls: list[None] = []
    found = serve([lambda: calls.append(None)], [None] * 5)
    assert len(calls) == len(found["latencies_s"]) == 5
    assert found["cpu_s"] == pytest.approx(0, abs=0.1)
