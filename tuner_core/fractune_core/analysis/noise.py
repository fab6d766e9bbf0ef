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

from fractune_core.records import Disturbance

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


# Causes of a machine's spread: which cause was larger when the same candidate took longer.
#
# A candidate that was timed twice in one way gives a pair: the difference of its two times, and for each cause the
# difference of its counts. Kendall's tau-b of the two over all pairs shows whether the cause goes with the time. A
# tau within the chance of this number of pairs explains nothing.
#
# Tau is computed for each setting and averaged. A short timing and a long one do not suffer alike from the same
# cause, and a joint order of both would hide the effect in each.
#
# The anchor is not a counted cause. It measures the machine's speed, and is timed once for a whole batch. So it is
# judged by the spread that remains when each time is divided by the anchor beside it.

LEAST_TAU = 0.2
"""A weaker relation explains little, however many pairs show it"""
STEADIER = 0.8
"""The anchor explains a spread if at most this part of it remains without the anchor"""
_SIGMAS = 3.0
"""standard deviations of tau between independent orders"""

CAUSES: dict[str, Callable[[Disturbance], float]] = {
    "off core": lambda seen: seen.off_core_s / seen.wall_s,
    "steal": lambda seen: seen.steal_s / seen.wall_s,
    "waiting": lambda seen: seen.waited_s / seen.wall_s,
    "others": lambda seen: seen.others_s / seen.wall_s,
    "throttling": lambda seen: seen.throttled_s / seen.wall_s,
    "preemptions": lambda seen: seen.preemptions / seen.wall_s,
    "slow clock": lambda seen: 1 / seen.clock_mhz if seen.clock_mhz else 0.0,
}
"""The kernel's counts; more is worse. Parts of the time (`off core` for all reasons together), preemptions a second,
the clock's period in microseconds (0 = not known)"""


@dataclass(frozen=True)
class Timing:
    """One timing of one candidate."""

    secs: float
    disturbance: Disturbance
    anchor_ratio: float
    """its time over its first time; 0 = not timed"""


Pair = tuple[Timing, Timing]
"""the same candidate, timed twice in the same way"""
Pairs = Mapping[str, Pair]
"""of one setting, by candidate"""


@dataclass(frozen=True)
class Explanation:
    """The causes that go with the spread of the pairs of some settings."""

    pairs: int
    taus: dict[str, float | None]
    """by cause, the mean over the settings; None = it never differed"""
    causes: list[str]
    """those that explain it, the strongest first"""
    calm_spread: float | None
    """median of |a - b| / mean of the half of the pairs with less of the strongest cause; None without one"""
    disturbed_spread: float | None
    """of the other half"""
    spread: float | None
    """median of |a - b| / mean of all pairs with a timed anchor; None without any, like the two below"""
    anchored_spread: float | None
    """the same, of times over the anchor's"""
    anchor_spread: float | None
    """the same, of the anchor itself"""

    @property
    def anchor_explains(self) -> bool:
        """Whether the speed of the machine itself has changed, and the times with it."""
        known = self.spread is not None and self.anchored_spread is not None
        return known and (self.anchored_spread or 0.0) <= STEADIER * (self.spread or 0.0)


def mean_of_causes(seen: Sequence[Disturbance]) -> dict[str, float]:
    """By cause, over some timings; empty for none."""
    return {name: statistics.mean(map(part, seen)) for name, part in CAUSES.items()} if seen else {}


def taus(pairs: Pairs) -> dict[str, float | None]:
    """Of each cause with the time, over the pairs of one setting."""
    return {cause: _tau(pairs, _beside(part)) for cause, part in CAUSES.items()}


def explain(settings: Sequence[Pairs]) -> Explanation | None:
    """The explanation of the spread of the pairs of some settings; None where no setting has two watched pairs."""
    comparable = [pairs for pairs in settings if len(pairs) > 1]
    if not comparable:
        return None
    by_setting = [taus(pairs) for pairs in comparable]
    found = {cause: _Tau.mean(comparable, [each[cause] for each in by_setting]) for cause in CAUSES}
    causes = sorted((cause for cause in CAUSES if found[cause].explains), key=lambda cause: -(found[cause].value or 0))
    halves = _halves(comparable, CAUSES[causes[0]]) if causes else (None, None)
    anchored = [pair for pairs in comparable for pair in pairs.values() if all(each.anchor_ratio > 0 for each in pair)]
    return Explanation(
        pairs=sum(map(len, comparable)),
        taus={cause: tau.value for cause, tau in found.items()},
        causes=causes,
        calm_spread=halves[0],
        disturbed_spread=halves[1],
        spread=_spread(anchored, lambda each: each.secs),
        anchored_spread=_spread(anchored, lambda each: each.secs / each.anchor_ratio),
        anchor_spread=_spread(anchored, lambda each: each.anchor_ratio),
    )


@dataclass(frozen=True)
class _Tau:
    """The mean of some taus."""

    value: float | None
    """None = none of them is known"""
    bar: float
    """what it must reach to explain anything"""

    @property
    def explains(self) -> bool:
        return self.value is not None and self.value >= self.bar

    @classmethod
    def mean(cls, settings: Sequence[Pairs], found: Sequence[float | None]) -> _Tau:
        """Of the settings where it is known, weighted by their numbers of pairs."""
        known = [(len(pairs), tau) for pairs, tau in zip(settings, found, strict=True) if tau is not None]
        if not known:
            return cls(None, math.inf)
        count = sum(pairs for pairs, _ in known)
        deviation = math.sqrt(sum((pairs * _chance(pairs)) ** 2 for pairs, _ in known)) / count
        return cls(sum(pairs * tau for pairs, tau in known) / count, max(LEAST_TAU, _SIGMAS * deviation))


def _chance(pairs: int) -> float:
    """The standard deviation of tau between two orders that are independent (Kendall, 1938)."""
    return math.sqrt(2 * (2 * pairs + 5) / (9 * pairs * (pairs - 1)))


def _tau(pairs: Pairs, part: Callable[[Timing], float]) -> float | None:
    """Of the difference in `part` with the difference of the times."""
    slower = {name: _relative(first.secs, second.secs) for name, (first, second) in pairs.items()}
    return kendall_tau_b(slower, {name: part(second) - part(first) for name, (first, second) in pairs.items()})


def _beside(part: Callable[[Disturbance], float]) -> Callable[[Timing], float]:
    return lambda timing: part(timing.disturbance)


def _halves(settings: Sequence[Pairs], part: Callable[[Disturbance], float]) -> tuple[float | None, float | None]:
    """The spread of the half of each setting's pairs with less of a cause, and of those with more."""
    calm: list[Pair] = []
    disturbed: list[Pair] = []
    for pairs in settings:
        ordered = sorted(pairs.values(), key=lambda pair: max(part(each.disturbance) for each in pair))
        calm += ordered[: len(ordered) // 2]
        disturbed += ordered[len(ordered) // 2 :]
    return _spread(calm, lambda each: each.secs), _spread(disturbed, lambda each: each.secs)


def _spread(pairs: Sequence[Pair], part: Callable[[Timing], float]) -> float | None:
    """Median of |a - b| / mean."""
    return statistics.median(abs(_relative(part(one), part(other))) for one, other in pairs) if pairs else None


def _relative(first: float, second: float) -> float:
    """How much more the second is, over their mean."""
    return (second - first) * 2 / (first + second)
