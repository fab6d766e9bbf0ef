"""What one schedule loses against another, and when that cannot be told from noise."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given, strategies as st

from fractune_core.analysis.slowdown_ci import Slowdown, _bound_of_ranks, _bound_of_signs, is_closed, slowdown

Noise = Callable[[random.Random, float], float]
"""one timing, at a part of the way through all of them"""

SECS = st.lists(st.floats(1e-6, 10), min_size=6, max_size=15)


def noisy(secs: float, spread: float, seed: int, count: int = 15) -> list[float]:
    rng = random.Random(seed)
    return [secs * rng.uniform(1 - spread, 1 + spread) for _ in range(count)]


def test_a_difference_beyond_the_noise_is_no_tie() -> None:
    found = slowdown(noisy(1.14, 0.02, 1), noisy(1.0, 0.02, 2), interleaved=True)
    assert not found.is_tie
    assert found.median == pytest.approx(0.14, abs=0.03)
    assert 0.1 < found.low < found.median < found.high < 0.18
    assert found.margin == pytest.approx((found.high - found.low) / 2)


def test_what_slows_both_in_a_turn_cancels_out_and_a_loss_is_that_of_the_pairs() -> None:
    weather = noisy(1.0, 0.5, 3)
    mine, best = [1.05 * secs for secs in weather], weather
    assert not slowdown(mine, best, interleaved=True).is_tie
    assert slowdown(mine, best, interleaved=False).is_tie
    found = slowdown([1.0] * 3 + [2.0] * 4, [1.0] * 4 + [2.0] * 3, interleaved=True)
    assert found.median == 0.0
    assert found.low <= found.median <= found.high


@pytest.mark.parametrize(
    "found",
    [
        *(Slowdown(0.3, -0.1, 0.4), Slowdown(-0.3, -0.4, 0.1)),
        *(Slowdown(5.46, 1.43, 16.1), Slowdown(0.014, 0.001, 0.09), Slowdown(-0.3, -0.9, -0.01)),
    ],
)
def test_an_interval_is_a_tie_if_it_holds_zero_however_large_the_median_or_wide_the_interval(found: Slowdown) -> None:
    assert (found.margin < abs(found.median)) == found.is_tie == (found.low < 0.0 < found.high)


@pytest.mark.parametrize(("repeats", "known"), [(2, False), (5, False), (6, True)])
def test_few_repeats_tell_nothing(repeats: int, known: bool) -> None:  # noqa: FBT001
    found = slowdown([2.0] * repeats, [1.0] * repeats, interleaved=True)
    assert (found.median, found.is_tie) == (1.0, not known)
    assert math.isnan(found.low) is not known


def normal(rng: random.Random, _: float) -> float:
    return math.exp(rng.gauss(0.0, 0.05))


def heavy_tailed(rng: random.Random, _: float) -> float:
    return 1.0 + 0.02 * rng.paretovariate(1.5)


def drifting(rng: random.Random, part: float) -> float:
    return (1.0 + 0.3 * part) * math.exp(rng.gauss(0.0, 0.05))


@pytest.mark.parametrize("noise", [normal, heavy_tailed, drifting])
@pytest.mark.parametrize("repeats", [7, 11])
def test_intervals_of_pairs_cover(repeats: int, noise: Noise) -> None:
    """A percentile bootstrap covers 87 % with 7 pairs."""
    assert 0.94 <= coverage(repeats, noise, interleaved=True) <= 0.99


@pytest.mark.parametrize("noise", [normal, heavy_tailed])
@pytest.mark.parametrize("repeats", [5, 15])
def test_intervals_of_separate_timings_cover(repeats: int, noise: Noise) -> None:
    assert 0.94 <= coverage(repeats, noise, interleaved=False) <= 0.99


def coverage(repeats: int, noise: Noise, *, interleaved: bool, times: int = 2000) -> float:
    """How often the interval holds the true difference, which is none."""
    rng, held = random.Random(0), 0
    for _ in range(times):
        one, other = ([noise(rng, turn / repeats) for turn in range(repeats)] for _ in range(2))
        found = slowdown(one, other, interleaved=interleaved)
        held += found.low <= 0.0 <= found.high
    return held / times


@pytest.mark.parametrize(
    ("one", "other", "critical"), [(4, 4, 0), (5, 5, 2), (7, 7, 8), (9, 9, 17), (15, 15, 64), (5, 11, 9)]
)
def test_the_bound_of_ranks_is_that_of_the_published_tables(one: int, other: int, critical: int) -> None:
    """The largest U at which two samples differ, two-sided at 5 %."""
    assert _bound_of_ranks(one, other, 0.95) == critical + 1


@pytest.mark.parametrize(("count", "bound"), [(5, 0), (6, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8)])
def test_the_bound_of_signs_is_that_of_the_published_tables(count: int, bound: int) -> None:
    assert _bound_of_signs(count, 0.95) == bound


def differs(ratios: Sequence[float], level: float) -> bool:
    return not slowdown(ratios, [1.0] * len(ratios), interleaved=True, level=level).is_tie


def ended(ratios: Sequence[float], level: float, fewest: int = 6) -> Sequence[float]:
    """The rounds until the comparison is closed, at least the `fewest`."""
    ends = (
        count for count in range(fewest, len(ratios)) if is_closed(ratios[:count], [1.0] * count, len(ratios), level)
    )
    return ratios[: next(ends, len(ratios))]


@pytest.mark.parametrize("rounds", [6, 7, 11, 14])
@pytest.mark.parametrize("pairs", [1, 3, 6])
def test_a_comparison_that_ends_early_finds_no_more_differences_among_equals_than_its_level(
    rounds: int, pairs: int
) -> None:
    """All orders of faster and slower rounds are as likely among equals."""
    level = 1.0 - 0.05 / pairs
    orders = list(product((0.9, 1.1), repeat=rounds))
    found = sum(differs(ended(order, level), level) for order in orders)
    assert found <= (1.0 - level) * len(orders)


@given(ratios=st.lists(st.sampled_from([0.9, 1.0, 1.1]), min_size=6, max_size=14))
def test_a_comparison_in_which_both_were_slower_ends_as_all_its_rounds_would(ratios: list[float]) -> None:
    taken = ended(ratios, 0.95)
    if min(taken) <= 1.0 <= max(taken):
        assert differs(taken, 0.95) == differs(ratios, 0.95)


def test_ties_end_early_and_so_do_clear_differences() -> None:
    assert len(ended([0.9, 1.1] * 6, 0.95)) == 6
    assert len(ended([1.1] * 11, 0.95)) == 6
    assert len(ended([1.1] * 11, 1 - 0.05 / 3)) == 9


@given(mine=SECS, best=SECS, factor=st.floats(0.1, 10), interleaved=st.booleans())
def test_only_the_ratio_matters(*, mine: list[float], best: list[float], factor: float, interleaved: bool) -> None:
    one = slowdown(mine, best, interleaved=interleaved)
    scaled = slowdown([factor * secs for secs in mine], [factor * secs for secs in best], interleaved=interleaved)
    assert [scaled.median, scaled.low, scaled.high] == pytest.approx([one.median, one.low, one.high], abs=1e-6)
