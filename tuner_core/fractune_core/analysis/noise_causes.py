"""Causes of a machine's spread: which cause was larger when the same candidate took longer.

A candidate that was timed twice in one way gives a pair: the difference of its two times, and for each cause the
difference of its counts. Kendall's tau-b of the two over all pairs shows whether the cause goes with the time. A tau
within the chance of this number of pairs explains nothing.

Tau is computed for each setting and averaged. A short timing and a long one do not suffer alike from the same cause,
and a joint order of both would hide the effect in each.

The anchor is not a counted cause. It measures the machine's speed, and is timed once for a whole batch. So it is judged
by the spread that remains when each time is divided by the anchor beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fractune_core.analysis.noise import kendall_tau_b
from fractune_core.disturbances import Disturbance

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
