"""What many operators and seeds together say of two tuners."""

from __future__ import annotations

import math

import pytest

from benchmarks.support.cases import moments_of, summary
from benchmarks.support.trajectory import Trial


def test_a_bar_holds_only_where_the_interval_says_so() -> None:
    ratios = [0.5, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.9, 1.0, 1.1, 1.2, 1.3]
    found = summary(ratios, [1.0] * len(ratios))
    assert found.cases == 12
    # The third from either end: 96.1 %.
    assert [found.median, found.low, found.high] == pytest.approx([0.85, 0.7, 1.1])
    assert found.geometric_mean == pytest.approx(math.exp(sum(map(math.log, ratios)) / 12))
    assert [found.verdict(bar) for bar in (1.2, 1.0, 0.5)] == ["holds", "cannot tell", "does not hold"]


def test_three_cases_cannot_tell() -> None:
    found = summary([0.1] * 3, [1.0] * 3)
    assert found.median == pytest.approx(0.1)
    assert math.isnan(found.low)
    assert found.verdict(1.0) == "cannot tell"


def test_a_case_that_ours_never_reached_counts_and_one_that_stock_has_not_does_not() -> None:
    found = summary([0.5] * 8 + [math.inf, 1.0], [1.0] * 9 + [math.inf])
    assert found.cases == 9
    assert found.median == pytest.approx(0.5)
    assert math.isinf(found.geometric_mean)
    assert summary([1.0], [math.inf]).cases == 0


def test_each_side_is_held_to_what_stock_ends_with() -> None:
    sides = {
        "stock": [Trial(10.0, "a", 3.0, "s1"), Trial(20.0, "a", 2.0, "s2"), Trial(5.0, "b", 1.0, "other")],
        "ours": [Trial(1.0, "a", 4.0, "o1"), Trial(2.0, "a", 1.5, "o2")],
    }
    again_s = {"stock": {"s1": 3.0, "s2": 2.5}, "ours": {"o1": 2.6, "o2": 1.6}}
    assert moments_of(sides, "a", again_s) == {"stock": 20.0, "ours": 2.0}
    assert math.isinf(moments_of(sides, "a", {**again_s, "ours": {"o1": 2.6, "o2": 2.6}})["ours"])
    assert math.isinf(moments_of({"stock": [], "ours": sides["ours"]}, "a", again_s)["stock"])
