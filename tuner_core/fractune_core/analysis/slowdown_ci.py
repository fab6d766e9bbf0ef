"""What one schedule loses against another, from repeated timings: a ratio and its confidence interval.

Intervals are exact: between two of the ordered ratios, chosen by how likely the true one lies beyond them whatever the
noise is distributed like. With few repeats no two of them are enough, and the interval is not known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95


@dataclass(frozen=True)
class Slowdown:
    """Relative: 0.14 = takes 14 % longer; below 0 = is faster."""

    median: float
    low: float
    high: float
    """the interval; not a number where there are too few repeats to tell"""

    @property
    def margin(self) -> float:
        """Half the interval."""
        return (self.high - self.low) / 2

    @property
    def is_tie(self) -> bool:
        """The difference is inside the noise: zero lies in the interval, or the interval is not known."""
        return not (self.low > 0.0 or self.high < 0.0)


@dataclass(frozen=True)
class Estimate:
    """A median of several values, and an interval that covers the true one as often as it was asked to."""

    median: float
    low: float
    high: float
    """not a number, as `low`, where there are too few values to tell"""


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """The median of `values`, each measured anew, with the interval of the sign test: see `slowdown`, `in_turn`."""
    ordered, at = sorted(values), _bound_of_signs(len(values), level)
    low, high = (ordered[at - 1], ordered[-at]) if at else (math.nan, math.nan)
    return Estimate(statistics.median(ordered), low, high)


def slowdown(run_secs: Sequence[float], best_secs: Sequence[float], *, in_turn: bool, level: float = LEVEL) -> Slowdown:
    """How much longer `run_secs` are than `best_secs`, both in seconds, with an interval that covers with `level`.

    `in_turn` says that the n-th repeats of both were taken next to each other: then it is the median of the ratios of
    these pairs, and what slows the machine for both cancels out. Its interval is that of the sign test: the ratios'
    median lies beyond the k-th smallest as often as a fair coin falls one way fewer than k times. Else it is the median
    of all ratios of one to another, with the interval of the rank sum test (Hodges and Lehmann, 1963).

    It tells what would come out if the same machine code were timed again, not what another search or another build
    would find.
    """
    ratios, at = _ratios(run_secs, best_secs, in_turn=in_turn, level=level)
    median = statistics.median(ratios) - 1.0
    if not at:
        return Slowdown(median, math.nan, math.nan)
    return Slowdown(median, ratios[at - 1] - 1.0, ratios[-at] - 1.0)


def ratio(run_secs: Sequence[float], best_secs: Sequence[float], *, in_turn: bool) -> float:
    """How many times as long `run_secs` are: what `slowdown` says, without its interval."""
    return statistics.median(_ratios(run_secs, best_secs, in_turn=in_turn, level=LEVEL)[0])


def _ratios(
    run_secs: Sequence[float], best_secs: Sequence[float], *, in_turn: bool, level: float
) -> tuple[list[float], int]:
    """In order; and which of them, from either end, bounds the interval: the first is 1, 0 = none is enough."""
    if in_turn and len(run_secs) == len(best_secs):
        ratios = sorted(mine / best for mine, best in zip(run_secs, best_secs, strict=True))
        return ratios, _bound_of_signs(len(ratios), level)
    ratios = sorted(mine / best for mine in run_secs for best in best_secs)
    return ratios, _bound_of_ranks(len(run_secs), len(best_secs), level)


@cache
def _bound_of_signs(count: int, level: float) -> int:
    ways = [math.comb(count, below) for below in range(count + 1)]
    return _bound(ways, level)


@cache
def _bound_of_ranks(one: int, other: int, level: float) -> int:
    """By in how many orders of two samples of these sizes u pairs stand one way round (Mann and Whitney, 1947)."""
    ways = [[[1] for _ in range(other + 1)] for _ in range(one + 1)]
    for first in range(1, one + 1):
        for second in range(1, other + 1):
            # The largest of all is of the second sample, or it is of the first, above all of the second.
            made = [0] * (first * second + 1)
            for pairs, count in enumerate(ways[first][second - 1]):
                made[pairs] += count
            for pairs, count in enumerate(ways[first - 1][second]):
                made[pairs + second] += count
            ways[first][second] = made
    return _bound(ways[one][other], level)


def _bound(ways: Sequence[int], level: float) -> int:
    """The most places whose two tails together are no likelier than what `level` leaves."""
    total, tail, bound = sum(ways), 0, 0
    for count in ways[: len(ways) // 2]:
        tail += count
        if 2 * tail > (1.0 - level) * total:
            break
        bound += 1
    return bound
