"""The worth of a measurement: spread, rank agreement and regret, and the advice that follows from them.

Every setting (how carefully, beside how many neighbours) times the same candidates in two passes. Two candidates that
the reference cannot tell apart have no true order, so a setting that swaps them is not wrong. Therefore the rank
agreement is Kendall's tau-b over the pairs with reference times further apart than `tie_width`. That is the 90th
percentile of the reference's own A/A spread, and at most 5 %: otherwise a machine too noisy to rank anything would
agree with everything. Tau-b over all pairs is reported as well. A setting is judged by the worse of its passes, because
a search sees only one pass.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Times = Mapping[str, float]
"""median seconds by candidate, without those that failed"""

FEWEST_CANDIDATES = 8
"""With fewer candidates a rank correlation means nothing"""
TAU_WANTED = 0.9
REGRET_ALLOWED = 0.02
"""A setting is good enough with at least this rank agreement and at most this loss of its winner"""
WIDEST_TIE = 0.05
"""Widest tie: of two candidates further apart than this, the faster one is wanted despite the noise"""
DEFAULT_MARGIN = 1.25
"""racing margin before the noise was measured"""
MARGINS = (1.10, 1.15, 1.25, 1.5, 2.0)
"""Racing margins to choose from. None below 1.10: the next operator may be noisier than the one that was timed"""


@dataclass(frozen=True)
class Spread:
    """|a - b| / mean of two timings of the same thing, as fractions."""

    median: float
    p90: float


@dataclass(frozen=True)
class Score:
    """A setting's result against the reference. None = not enough timings to tell."""

    spread: Spread | None
    """between its two passes"""
    tau: float | None
    """over pairs that lie further apart than a tie; the worse pass"""
    tau_all: float | None
    """over all pairs; the worse pass"""
    regret: float | None
    """reference time of the winner over the best reference time, less 1; the worse pass"""

    @property
    def is_good(self) -> bool:
        return (
            self.tau is not None and self.tau >= TAU_WANTED and self.regret is not None and is_negligible(self.regret)
        )


@dataclass(frozen=True)
class NoiseAdvice:
    """How to measure under one share of one device."""

    measurers: int
    """how many may measure at the same time"""
    margin: float
    """a trial gets the longer timing while it is at most this many times slower than the fastest"""
    builds_beside: bool
    """whether builds may run on the other cores while something is measured"""
    tau: float | None
    """rank agreement with this number of measurers; None = all candidates were ties, or all failed"""
    regret: float | None
    """loss of the winner with this number of measurers, as a fraction; None = all failed"""
    measured_at: float
    """seconds since 1970, UTC"""


def is_negligible(regret: float | None) -> bool:
    return regret is not None and regret <= REGRET_ALLOWED


def spread(first: Times, second: Times) -> Spread | None:
    """Spread of the candidates that both passes timed; None when there are none."""
    apart = sorted(_apart(first[name], second[name]) for name in first.keys() & second.keys())
    if not apart:
        return None
    return Spread(statistics.median(apart), apart[math.ceil(0.9 * len(apart)) - 1])


def tie_width(reference: Spread) -> float:
    """How far apart, as a fraction, the reference must time two candidates for one to be truly faster."""
    return min(reference.p90, WIDEST_TIE)


def mean_times(first: Times, second: Times) -> dict[str, float]:
    """The median of two passes, which is their mean; candidates that failed once are left out."""
    return {name: (first[name] + second[name]) / 2 for name in first if name in second}


def kendall_tau_b(reference: Times, times: Times, tie: float | None = None) -> float | None:
    """Kendall's tau-b of two timings of the candidates that are in both: 1 for the same order, -1 for the reverse.

    With `tie` (a fraction), only over the pairs that the reference times further apart than that. None when no pair
    is left that both could have ordered.
    """
    agreement = ordered = ordered_here = 0
    for one, other in itertools.combinations(sorted(reference.keys() & times.keys()), 2):
        if tie is not None and _apart(reference[one], reference[other]) <= tie:
            continue
        truth, found = _sign(reference[one] - reference[other]), _sign(times[one] - times[other])
        agreement += truth * found
        ordered += abs(truth)
        ordered_here += abs(found)
    return agreement / math.sqrt(ordered * ordered_here) if ordered and ordered_here else None


def top1_regret(reference: Times, times: Times) -> float | None:
    """Reference time of the fastest in `times`, over the best reference time, less 1; None when nothing was timed."""
    both = reference.keys() & times.keys()
    if not both:
        return None
    return reference[min(both, key=times.__getitem__)] / min(reference.values()) - 1


def score(passes: Sequence[Times], references: Sequence[Times], tie: float) -> Score:
    """Judge two passes, each against its reference; `tie` as `tie_width` gives it."""
    against = list(zip(references, passes, strict=True))
    return Score(
        spread=spread(*passes),
        tau=_worst(min, (kendall_tau_b(reference, times, tie) for reference, times in against)),
        tau_all=_worst(min, (kendall_tau_b(reference, times) for reference, times in against)),
        regret=_worst(max, (top1_regret(reference, times) for reference, times in against)),
    )


def racing_margin(reference: Times, firsts: Iterable[Times]) -> float:
    """The smallest margin of MARGINS that loses no winner to a short first timing.

    Every candidate within REGRET_ALLOWED of the best in the reference was, in each pass of `firsts`, within this margin
    of that pass's fastest. When even the largest margin is too small, the needed margin, rounded up to the next half.
    """
    bar_s = min(reference.values()) * (1 + REGRET_ALLOWED)
    near = {name for name, secs in reference.items() if secs <= bar_s}
    needed = [times[name] / min(times.values()) for times in firsts for name in near & times.keys()]
    worst = max(needed, default=1.0)
    return next((margin for margin in MARGINS if margin >= worst), math.ceil(worst * 2) / 2)


def measurers_at_once(scores: Mapping[int, Score]) -> int:
    """The largest number of concurrent measurers whose score is good, else 1."""
    return max((count for count, each in scores.items() if each.is_good), default=1)


def _apart(one: float, other: float) -> float:
    """Difference of two times over their mean."""
    return abs(one - other) * 2 / (one + other)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _worst(pick: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """The worst of the values; None when one pass could not tell, because it may have been the worse one."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return pick(known) if len(known) == len(listed) else None
