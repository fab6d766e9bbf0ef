"""How rounds are made of blocks: in which order, and what happens when two missed each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from fractune.features.pair.run import CoLocation
from fractune_core.errors import FractuneError

Marks = Callable[[dict[str, Any]], list[float]]


@dataclass(eq=False)
class SimulatedCoRunner:
    program: SimpleNamespace
    secs: float
    call: Callable[..., Future[list[float]]]


def co_runner(name: str, calls: list[str], marks: Marks, *, is_model: bool = True) -> Any:
    """Answers every loop at once, by its word."""

    def call(method: str, expected_s: float, **payload: Any) -> Future[list[float]]:
        assert (method, expected_s > 0) == ("loop", True)
        calls.append(name)
        future: Future[list[float]] = Future()
        future.set_result(marks(payload))
        return future

    return SimulatedCoRunner(SimpleNamespace(is_model=is_model, name=name), 0.1, call)


def lasting(secs: float) -> Marks:
    """A loop of iterations of that length."""

    def marks(payload: dict[str, Any]) -> list[float]:
        count = round(payload["lasts_s"] / secs)
        return [payload["begin_s"] + number * secs for number in range(count + 1)]

    return marks


def test_a_round_is_the_same_from_both_ends() -> None:
    calls: list[str] = []
    names = ("A", "B", "A whole", "B whole")
    a, b, whole_a, whole_b = (
        co_runner(name, calls, lasting(secs)) for name, secs in zip(names, (0.1, 0.2, 0.05, 0.1), strict=True)
    )
    both = CoLocation([a, b], [whole_a, whole_b], 0)
    first = both.time_round(0)
    assert calls == ["A whole", "B whole", "A", "B", *("A", "B"), *("A", "B"), "B", "A", "B whole", "A whole"]
    assert [times.share_s for times in first] == pytest.approx([0.1, 0.2])
    assert [times.s for times in first] == pytest.approx([2.0, 2.0])
    assert [times.i for times in first] == pytest.approx([1.0, 1.0])
    assert [times.control_s for times in first] == pytest.approx([0.1, 0.2])


def test_two_on_the_whole_are_timed_there_once() -> None:
    calls: list[str] = []
    a, b = (co_runner(name, calls, lasting(0.1)) for name in "AB")
    times = CoLocation([a, b], [a, b], 0).time_round(0)
    assert [each.s for each in times] == [1.0, 1.0]
    assert calls == ["A", "B", "A", "B", "A", "B", "B", "A"]


def test_a_co_runner_that_is_not_a_model_is_only_there() -> None:
    calls: list[str] = []
    a, bubble = co_runner("A", calls, lasting(0.1)), co_runner("bubble", calls, lasting(0.01), is_model=False)
    (times,) = CoLocation([a, bubble], [], 0).time_round(0)
    assert (calls, times.whole_s) == (["A", "A", "A", "bubble", "A"], None)


@pytest.mark.parametrize(("late", "tries"), [(0, 1), (2, 3)])
def test_two_that_missed_each_other_are_started_again(late: int, tries: int) -> None:
    calls: list[str] = []
    a, b = co_runner("A", calls, lasting(0.1)), co_runner("B", calls, held_up(late), is_model=False)
    (times,) = CoLocation([a, b], [], 0).time_round(0)
    assert times.i == pytest.approx(1.0)
    assert calls.count("B") == tries


def test_two_that_are_far_slower_together_get_longer_loops_from_then_on() -> None:
    lasted_s: list[float] = []

    def slow(payload: dict[str, Any]) -> list[float]:
        """Five seconds an inference, but for the loops that are not beside the other."""
        lasted_s.append(payload["lasts_s"])
        return lasting(5.0 if payload["phase_s"] else 0.1)(payload)

    a, b = co_runner("A", [], slow), co_runner("B", [], lasting(0.1), is_model=False)
    both = CoLocation([a, b], [], 0)
    (times,) = both.time_round(0)
    assert times.i == pytest.approx(50.0)
    assert max(lasted_s) == pytest.approx(16 * both.block_s)
    lasted_s.clear()
    both.time_round(0)
    assert sorted(lasted_s)[-2:] == pytest.approx([both.block_s, 16 * both.block_s])


def test_but_not_for_ever() -> None:
    a, b = co_runner("A", [], lasting(0.1)), co_runner("B", [], held_up(9), is_model=False)
    with pytest.raises(FractuneError, match="A and B never ran together in 3 loops"):
        CoLocation([a, b], [], 0).time_round(0)


def held_up(times: int) -> Marks:
    """A loop that begins far too late, so many times."""
    delays = iter([100.0] * times)
    return lambda payload: [mark + delay for delay in [next(delays, 0.0)] for mark in lasting(0.1)(payload)]
