"""Cases of a comparison, one operator under one seed each; and the statistics of all of them together."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.support.trajectory import Trial, first_held, held_curve, incumbents
from fractune_core.analysis.slowdown_ci import slowdown


@dataclass(frozen=True)
class Case:
    """Both sides of it, in seconds; infinite where a side never got there, or has nothing that is right."""

    operator: str
    seed: int
    latency_s: dict[str, float]
    """what each side ends with, measured again"""
    reached_s: dict[str, float]
    """when each side first held what stock ends with"""


@dataclass(frozen=True)
class Summary:
    """Ours over stock's, of all cases that stock has a number of."""

    cases: int
    median: float
    low: float
    high: float
    """the exact interval of the median (95 %); not a number with fewer cases than it takes to have one"""
    geometric_mean: float
    """infinite where ours did not get there once"""

    def verdict(self, bar: float) -> str:
        """Whether the median is at most the bar: "holds", "does not hold" or, by the interval, "cannot tell"."""
        if self.high <= bar:
            return "holds"
        return "does not hold" if self.low > bar else "cannot tell"


def moments_of(
    trials: Mapping[str, Sequence[Trial]], operator: str, again_s: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Seconds until each side first held for this operator what stock ends with; `again_s`: seconds of every incumbent
    of each side by trace, measured again.
    """
    curves = {}
    for side, made in trials.items():
        held = incumbents(trial for trial in made if trial.operator == operator)
        retimed = [Trial(trial.at_s, operator, again_s[side][trial.trace]) for trial in held]
        curves[side] = held_curve(retimed, {operator: 1})
    goal_s = curves["stock"][-1][1] if curves["stock"] else math.nan
    return {side: first_held(curve, goal_s) for side, curve in curves.items()}


def summary(ours: Sequence[float], stock: Sequence[float]) -> Summary:
    """Of pairs in the same order; cases without a finite number of stock are left out."""
    pairs = [(mine, peers) for mine, peers in zip(ours, stock, strict=True) if math.isfinite(peers) and peers > 0]
    if not pairs:
        return Summary(0, math.nan, math.nan, math.nan, math.nan)
    found = slowdown([mine for mine, _ in pairs], [peers for _, peers in pairs], interleaved=True)
    ratios = [mine / peers for mine, peers in pairs]
    mean = statistics.geometric_mean(ratios) if all(map(math.isfinite, ratios)) else math.inf
    return Summary(len(pairs), found.median + 1.0, found.low + 1.0, found.high + 1.0, mean)
