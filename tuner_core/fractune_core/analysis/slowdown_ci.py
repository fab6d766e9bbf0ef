"""The loss of one schedule against another, from repeated timings: a ratio and its confidence interval.

Intervals are exact for any distribution of the noise. They lie between two of the ordered ratios, chosen by the
probability that the true ratio lies beyond them. With too few repeats the interval is not known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from fractune_core.served import widened

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median of several values, and an interval that covers the true median with the requested probability."""

    median: float
    low: float
    high: float
    """NaN, like `low`, with too few values"""

    @property
    def is_ratio(self) -> bool:
        """Whether it can be one of times: above 0 and finite, with the median in the interval."""
        return 0 < self.low <= self.median <= self.high < math.inf


class Slowdown(Estimate):
    """Relative: 0.14 = takes 14 % longer; below 0 = is faster."""

    @property
    def margin(self) -> float:
        """Half the interval."""
        return (self.high - self.low) / 2

    @property
    def is_tie(self) -> bool:
        """Whether the difference is inside the noise: zero lies in the interval, or the interval is not known."""
        return not (self.low > 0.0 or self.high < 0.0)

    def widened(self, kept: float, other_kept: float) -> Slowdown:
        """With the interval for times that were measured with these parts of the cores (`kept_part`)."""
        low, high = widened(1.0 + self.low, 1.0 + self.high, kept, other_kept)
        return Slowdown(self.median, low - 1.0, high - 1.0)


def estimate(values: Sequence[float]) -> Estimate:
    """The median of independently measured `values`, with the interval of the sign test (see `slowdown`)."""
    ordered, at = sorted(values), _bound_of_signs(len(values), LEVEL)
    low, high = (ordered[at - 1], ordered[-at]) if at else (math.nan, math.nan)
    return Estimate(statistics.median(ordered), low, high)


def slowdown(
    run_secs: Sequence[float], best_secs: Sequence[float], *, interleaved: bool, level: float = LEVEL
) -> Slowdown:
    """How much longer `run_secs` are than `best_secs`, both in seconds, with an interval that covers with `level`.

    `interleaved` means that the n-th repeats of both were taken next to each other. Then the result is the median of
    the ratios of these pairs, and slowdowns that affect both cancel out. Its interval is that of the sign test: the
    ratios' median lies beyond the k-th smallest as often as a fair coin falls one way fewer than k times. Otherwise the
    result is the median of all ratios of one to another, with the interval of the rank sum test (Hodges and Lehmann,
    1963).

    The result predicts another timing of the same machine code, not the result of another search or another build.
    """
    ratios, at = _ratios(run_secs, best_secs, interleaved=interleaved, level=level)
    median = statistics.median(ratios) - 1.0
    if not at:
        return Slowdown(median, math.nan, math.nan)
    return Slowdown(median, ratios[at - 1] - 1.0, ratios[-at] - 1.0)


def ratio(run_secs: Sequence[float], best_secs: Sequence[float], *, interleaved: bool) -> float:
    """The ratio of `run_secs` to `best_secs`: the median of `slowdown`, plus 1."""
    return statistics.median(_ratios(run_secs, best_secs, interleaved=interleaved, level=LEVEL)[0])


def is_closed(one_secs: Sequence[float], other_secs: Sequence[float], rounds: int, level: float) -> bool:
    """Whether an interleaved comparison by `slowdown` at `level` needs no further round, of `rounds` in all. The values
    are those of the rounds so far.

    It may end in two cases. Either each side was slower so often that the last round can show no difference any more.
    Then the result is that of all rounds. Or one side was slower in every round, of at least `_unanimous_rounds`.
    """
    pairs = list(zip(one_secs, other_secs, strict=True))
    fewer = min(sum(one >= other for one, other in pairs), sum(other >= one for one, other in pairs))
    if fewer >= _bound_of_signs(rounds, level):
        return True
    return fewer == 0 and len(pairs) >= _unanimous_rounds(rounds, level)


@cache
def _unanimous_rounds(rounds: int, level: float) -> int:
    """Among equals one side is slower in all of so many rounds with a small chance. The chance that all `rounds` show a
    difference comes on top of it, and both together leave `level`.
    """
    left = 1.0 - level - _tails_of_signs(rounds, _bound_of_signs(rounds, level))
    return next((count for count in range(1, rounds) if 2.0 ** (1 - count) <= left), rounds)


def _ratios(
    run_secs: Sequence[float], best_secs: Sequence[float], *, interleaved: bool, level: float
) -> tuple[list[float], int]:
    """The ratios in order, and the index from either end that bounds the interval: the first is 1, 0 = too few."""
    if interleaved and len(run_secs) == len(best_secs):
        ratios = sorted(mine / best for mine, best in zip(run_secs, best_secs, strict=True))
        return ratios, _bound_of_signs(len(ratios), level)
    ratios = sorted(mine / best for mine in run_secs for best in best_secs)
    return ratios, _bound_of_ranks(len(run_secs), len(best_secs), level)


@cache
def _bound_of_signs(count: int, level: float) -> int:
    """The index from either end of `count` ordered ratios that bounds the interval: the first is 1, 0 = too few."""
    ways = [math.comb(count, below) for below in range(count + 1)]
    return _bound(ways, level)


def _tails_of_signs(count: int, bound: int) -> float:
    """How often the median of `count` ratios lies outside the interval with this bound, among equals."""
    return 2.0 * sum(math.comb(count, below) for below in range(bound)) / 2.0**count


@cache
def _bound_of_ranks(one: int, other: int, level: float) -> int:
    """From the number of orders of two samples of these sizes with u inversions (Mann and Whitney, 1947)."""
    ways = [[[1] for _ in range(other + 1)] for _ in range(one + 1)]
    for first in range(1, one + 1):
        for second in range(1, other + 1):
            # The largest value belongs to the second sample; or to the first, above all of the second.
            made = [0] * (first * second + 1)
            for pairs, count in enumerate(ways[first][second - 1]):
                made[pairs] += count
            for pairs, count in enumerate(ways[first - 1][second]):
                made[pairs + second] += count
            ways[first][second] = made
    return _bound(ways[one][other], level)


def _bound(ways: Sequence[int], level: float) -> int:
    """The largest index for which both tails together are at most as likely as 1 - `level`."""
    total, tail, bound = sum(ways), 0, 0
    for count in ways[: len(ways) // 2]:
        tail += count
        if 2 * tail > (1.0 - level) * total:
            break
        bound += 1
    return bound
