"""What a measurement is worth: spread, rank agreement, regret, and the advice that follows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.analysis.noise import (
    MARGINS,
    WIDEST_TIE,
    Score,
    Spread,
    kendall_tau_b,
    mean_times,
    measurers_at_once,
    racing_margin,
    score,
    spread,
    tie_width,
    top1_regret,
)

SECS = st.floats(1e-7, 1.0)
TIMES = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), SECS, min_size=2, max_size=12)


def named(*secs: float) -> dict[str, float]:
    return {f"c{number}": each for number, each in enumerate(secs)}


def good(tau: float = 1.0, regret: float = 0.0) -> Score:
    return Score(Spread(0.0, 0.0), tau, tau, regret)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12, unique=True))
def test_the_same_order_is_one_and_the_reverse_is_minus_one(secs: list[int]) -> None:
    times = named(*secs)
    assert kendall_tau_b(times, named(*(each**2 for each in secs))) == pytest.approx(1.0)
    assert kendall_tau_b(times, named(*(1001 - each for each in secs))) == pytest.approx(-1.0)


@given(TIMES, TIMES, st.floats(0.0, 0.5))
def test_tau_is_a_correlation_that_knows_no_direction(
    one: dict[str, float], other: dict[str, float], tie: float
) -> None:
    tau = kendall_tau_b(one, other)
    assert tau == kendall_tau_b(other, one)
    beyond = kendall_tau_b(one, other, tie)
    assert all(each is None or -1.0 - 1e-9 <= each <= 1.0 + 1e-9 for each in (tau, beyond))


def test_ties_are_counted_as_tau_b_counts_them() -> None:
    # As scipy.stats.kendalltau([1, 2, 2, 3, 4], [1, 3, 2, 2, 5]) has it: 7 pairs agree, 1 does not, of 9 and 9.
    assert kendall_tau_b(named(1, 2, 2, 3, 4), named(1, 3, 2, 2, 5)) == pytest.approx(6 / 9)
    assert kendall_tau_b(named(1, 1, 1), named(1, 2, 3)) is None


def test_pairs_within_a_tie_do_not_count_and_others_do() -> None:
    reference, swapped = named(1.00, 1.01, 2.00), named(1.01, 1.00, 2.00)
    assert kendall_tau_b(reference, swapped) == pytest.approx(1 / 3)
    assert kendall_tau_b(reference, swapped, tie=0.02) == 1.0
    assert kendall_tau_b(reference, named(2.00, 1.01, 1.00), tie=0.02) == -1.0
    assert kendall_tau_b(reference, swapped, tie=1.0) is None


@given(TIMES)
def test_two_equal_passes_have_no_spread_and_no_regret(times: dict[str, float]) -> None:
    assert spread(times, times) == Spread(0.0, 0.0)
    assert top1_regret(times, times) == 0.0
    assert mean_times(times, times) == times


def test_the_spread_is_the_difference_over_the_mean_of_those_timed_twice() -> None:
    first = {**named(*[1.0] * 10), "once": 5.0}
    second = named(*[1.0] * 5, *[1.1] * 4, 3.0)
    found = spread(first, second)
    assert found is not None
    assert found.median == pytest.approx((0.1 / 1.05) / 2)
    assert found.p90 == pytest.approx(0.1 / 1.05)
    assert spread(first, {}) is None
    assert "once" not in mean_times(first, second)


def test_a_tie_is_never_wider_than_what_a_user_cares_for() -> None:
    assert tie_width(Spread(0.01, 0.03)) == 0.03
    assert tie_width(Spread(0.3, 0.6)) == WIDEST_TIE


def test_regret_is_what_the_winner_loses() -> None:
    reference = named(1.0, 1.5, 2.0)
    assert top1_regret(reference, named(9.0, 8.0, 10.0)) == pytest.approx(0.5)
    assert top1_regret(reference, {"c2": 1.0}) == pytest.approx(1.0)
    assert top1_regret(reference, {}) is None


def test_a_setting_is_judged_by_the_worse_of_its_passes() -> None:
    reference = named(1.0, 2.0, 3.0)
    judged = score([reference, named(2.0, 1.0, 3.0)], [reference, reference], tie=0.0)
    assert judged.tau == pytest.approx(1 / 3)
    assert judged.regret == pytest.approx(1.0)
    assert not judged.is_good
    lost = score([reference, {}], [reference, reference], tie=0.0)
    assert (lost.spread, lost.tau, lost.regret) == (None, None, None)
    assert not lost.is_good


@pytest.mark.parametrize(
    ("first", "margin"),
    [
        ((1.0, 1.0, 9.0), 1.10),
        ((1.0, 1.12, 9.0), 1.15),
        ((1.4, 1.0, 9.0), 1.5),
        ((1.0, 2.3, 9.0), 2.5),
        ((1.2, 1.2, 1.0), 1.25),  # what is far behind may look fastest for once
    ],
)
def test_the_margin_keeps_every_winner_in_the_race(first: tuple[float, ...], margin: float) -> None:
    reference = named(1.0, 1.01, 5.0)
    assert racing_margin(reference, [reference, named(*first)]) == margin


@given(TIMES, st.lists(TIMES, max_size=2))
def test_the_margin_is_never_below_the_smallest(reference: dict[str, float], firsts: list[dict[str, float]]) -> None:
    margin = racing_margin(reference, firsts)
    assert MARGINS[0] <= margin < math.inf


def test_as_many_measurers_as_still_rank_right() -> None:
    assert measurers_at_once({1: good(), 2: good(tau=0.91), 4: good(tau=0.8)}) == 2
    assert measurers_at_once({1: good(), 2: good(regret=0.021), 4: good()}) == 4
    assert measurers_at_once({1: good(tau=0.5), 2: good(tau=0.5)}) == 1
