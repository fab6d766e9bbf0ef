"""What one schedule loses against another, from repeated timings: a ratio of medians and its confidence interval."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 1000
_LEVEL = 0.95
_SEED = 0


@dataclass(frozen=True)
class Slowdown:
    """Relative: 0.14 = takes 14 % longer; below 0 = is faster."""

    median: float
    low: float
    high: float
    """the 95 % interval; not a number where there are too few repeats to tell"""

    @property
    def margin(self) -> float:
        """Half the interval."""
        return (self.high - self.low) / 2

    @property
    def is_tie(self) -> bool:
        """The difference is inside the noise: no larger than the margin, or zero lies in the interval, or it is not
        known.
        """
        apart = self.low > 0.0 or self.high < 0.0
        return not apart or abs(self.median) <= self.margin


def slowdown(run_secs: Sequence[float], best_secs: Sequence[float], *, in_turn: bool) -> Slowdown:
    """How much longer `run_secs` are than `best_secs`, both in seconds: the ratio of their medians.

    The interval is a percentile bootstrap. `in_turn` says that the n-th repeats of both were taken next to each other:
    then it is the median of the ratios of these pairs, and what slows the machine for both cancels out.

    It tells what would come out if the same machine code were timed again, not what another search or another build
    would find.
    """
    pairs = in_turn and len(run_secs) == len(best_secs)
    median = ratio(run_secs, best_secs, in_turn=in_turn) - 1.0
    if min(len(run_secs), len(best_secs)) < 3:
        return Slowdown(median, math.nan, math.nan)
    rng = random.Random(_SEED)
    ratios = sorted(_resampled(rng, run_secs, best_secs, pairs=pairs) for _ in range(_RESAMPLES))
    tail = (1.0 - _LEVEL) / 2
    return Slowdown(median, ratios[int(tail * _RESAMPLES)] - 1.0, ratios[int((1.0 - tail) * _RESAMPLES) - 1] - 1.0)


def ratio(run_secs: Sequence[float], best_secs: Sequence[float], *, in_turn: bool) -> float:
    """How many times as long `run_secs` are: what `slowdown` says, without its interval."""
    return _ratio(run_secs, best_secs, pairs=in_turn and len(run_secs) == len(best_secs))


def _resampled(rng: random.Random, run_secs: Sequence[float], best_secs: Sequence[float], *, pairs: bool) -> float:
    if pairs:
        turns = rng.choices(range(len(run_secs)), k=len(run_secs))
        return _ratio([run_secs[turn] for turn in turns], [best_secs[turn] for turn in turns], pairs=True)
    mine, best = rng.choices(run_secs, k=len(run_secs)), rng.choices(best_secs, k=len(best_secs))
    return _ratio(mine, best, pairs=False)


def _ratio(run_secs: Sequence[float], best_secs: Sequence[float], *, pairs: bool) -> float:
    if pairs:
        return statistics.median(mine / best for mine, best in zip(run_secs, best_secs, strict=True))
    return statistics.median(run_secs) / statistics.median(best_secs)
