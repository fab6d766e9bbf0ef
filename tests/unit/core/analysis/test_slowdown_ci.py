"""What one schedule loses against another, and when that cannot be told from noise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.analysis.slowdown_ci import Slowdown, slowdown

SECS = st.lists(st.floats(1e-6, 10), min_size=3, max_size=15)


def noisy(secs: float, spread: float, seed: int, count: int = 15) -> list[float]:
    rng = random.Random(seed)
    return [secs * rng.uniform(1 - spread, 1 + spread) for _ in range(count)]


def test_a_difference_beyond_the_noise_is_no_tie() -> None:
    found = slowdown(noisy(1.14, 0.02, 1), noisy(1.0, 0.02, 2), in_turn=True)
    assert not found.is_tie
    assert found.median == pytest.approx(0.14, abs=0.03)
    assert 0.1 < found.low < found.median < found.high < 0.18
    assert found.margin == pytest.approx((found.high - found.low) / 2)


def test_a_difference_inside_the_noise_is_a_tie() -> None:
    assert slowdown(noisy(1.01, 0.2, 1), noisy(1.0, 0.2, 2), in_turn=False).is_tie


def test_faster_beyond_the_noise_is_no_tie_either() -> None:
    found = slowdown(noisy(0.8, 0.02, 1), noisy(1.0, 0.02, 2), in_turn=True)
    assert found.high < 0.0
    assert not found.is_tie


@pytest.mark.parametrize(("median", "low", "high"), [(0.3, -0.1, 0.4), (-0.3, -0.4, 0.1)])
def test_an_interval_that_holds_zero_is_a_tie_however_large_the_median(median: float, low: float, high: float) -> None:
    assert Slowdown(median, low, high).margin < abs(median)
    assert Slowdown(median, low, high).is_tie


def test_what_slows_both_in_a_turn_cancels_out() -> None:
    weather = noisy(1.0, 0.5, 3)
    mine, best = [1.05 * secs for secs in weather], weather
    assert not slowdown(mine, best, in_turn=True).is_tie
    assert slowdown(mine, best, in_turn=False).is_tie


def test_a_loss_in_turn_is_that_of_the_pairs_which_its_interval_is_of() -> None:
    found = slowdown([1.0, 1.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 2.0, 2.0], in_turn=True)
    assert found.median == 0.0
    assert found.low <= found.median <= found.high


def test_what_is_no_larger_than_the_margin_is_a_tie_though_the_interval_lies_to_one_side() -> None:
    assert Slowdown(0.014, 0.001, 0.09).is_tie
    assert not Slowdown(0.06, 0.01, 0.09).is_tie


def test_two_repeats_tell_nothing() -> None:
    found = slowdown([2.0, 2.0], [1.0, 1.0], in_turn=True)
    assert (found.median, found.is_tie) == (1.0, True)
    assert math.isnan(found.low)


@given(SECS, st.booleans())
def test_against_itself_nothing_is_lost(secs: list[float], in_turn: bool) -> None:  # noqa: FBT001
    found = slowdown(secs, secs, in_turn=in_turn)
    assert found.median == 0.0
    assert found.is_tie


@given(SECS, SECS, st.floats(0.1, 10), st.booleans())
def test_only_the_ratio_matters(mine: list[float], best: list[float], factor: float, in_turn: bool) -> None:  # noqa: FBT001
    one = slowdown(mine, best, in_turn=in_turn)
    scaled = slowdown([factor * secs for secs in mine], [factor * secs for secs in best], in_turn=in_turn)
    assert [scaled.median, scaled.low, scaled.high] == pytest.approx([one.median, one.low, one.high], abs=1e-6)
