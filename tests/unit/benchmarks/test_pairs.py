"""What the benchmark of pairs predicts, and how it sums up."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.pairs import apart_s, predicted_s, summary, together_s
from fractune_core.analysis.co_location import RoundTimes, co_location_figures


def case(**changes: Any) -> dict[str, Any]:
    return {
        "predicted_s": 4.0,
        "together_s": [4.1, 4.2, 9.0],
        "figures": {"sides": [{"control": {"median": 0.98}}, {"control": {"median": 1.01}}]},
        "makespan_verdict": "together",
        "mean_completion_verdict": "apart",
        **changes,
    }


def test_a_makespan_is_predicted_from_whole_times_and_slow_downs() -> None:
    figures = co_location_figures([(RoundTimes(0.02, 0.03, 0.03, 0.03), RoundTimes(0.1, 0.15, 0.15, 0.2))] * 9)
    # A's 100 take 3 s, in which B does 15 of its 40; the other 25 take 2.5 s on the whole.
    assert predicted_s(figures, [100, 40]) == pytest.approx(5.5)


def test_the_summary_has_the_errors_and_how_often_the_verdicts_disagree() -> None:
    told = summary([case(), case(together_s=[4.0]), case(together_s=[3.6], mean_completion_verdict="tie")])
    assert told["makespan_error_median"] == pytest.approx(0.05)
    assert told["makespan_error_worst"] == pytest.approx(0.1)
    assert told["control_error_worst"] == pytest.approx(0.02)
    assert told["verdicts_disagree"] == 2


def co_runner(done: int | None = None) -> SimpleNamespace:
    """Takes a tenth of a second for a call, by its word; `done` of those asked for, if not all."""
    asked: list[int] = []

    def call(method: str, expected_s: float, *, begin_s: float, count: int, ended: str) -> Future[dict[str, Any]]:
        assert (method, expected_s > 0, ended != "") == ("work", True, True)
        asked.append(count)
        future: Future[dict[str, Any]] = Future()
        made = count if done is None else done
        future.set_result({"done": made, "ended_s": begin_s + 0.1 * made})
        return future

    return SimpleNamespace(call=call, asked=asked)


def test_the_one_that_is_left_goes_on_with_the_whole() -> None:
    wholes = [co_runner(), co_runner()]
    begin_s = time.monotonic()
    both: Any = SimpleNamespace(co_runners=[co_runner(), co_runner(done=30)], wholes=wholes, begin_s=lambda: begin_s)
    assert together_s(both, [20, 50]) == pytest.approx(3.0 + 2.0)
    assert [each.asked for each in wholes] == [[], [20]]
    assert apart_s(both, [20, 50]) == pytest.approx(7.0)
