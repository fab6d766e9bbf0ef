"""What explains the spread of a machine: which cause was larger when the same candidate took longer.

A candidate that was timed twice in one way gives a pair: the difference of its two times, and for each cause the
difference of what was counted of it. Kendall's tau-b of the two over all pairs says whether the cause goes with the
time. What lies within the chance of so many pairs explains nothing.
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
_SIGMAS = 3.0
"""standard deviations of tau between things that have nothing to do with each other"""

CAUSES: dict[str, Callable[[Disturbance], float]] = {
    "off core": lambda seen: seen.off_core_s / seen.wall_s,
    "steal": lambda seen: seen.steal_s / seen.wall_s,
    "waiting": lambda seen: seen.waited_s / seen.wall_s,
    "others": lambda seen: seen.others_s / seen.wall_s,
    "throttling": lambda seen: seen.throttled_s / seen.wall_s,
    "preemptions": lambda seen: seen.preemptions / seen.wall_s,
    "slow clock": lambda seen: 1 / seen.clock_mhz if seen.clock_mhz else 0.0,
}
"""What the kernel counts, the more the worse: parts of the time (`off core` is that of all reasons), preemptions a
second, the clock's period in microseconds (0 = not known)"""


@dataclass(frozen=True)
class Timing:
    """One timing of one candidate."""

    secs: float
    disturbance: Disturbance
    anchor_ratio: float
    """of the anchor beside it; 0 = not timed"""


Pair = tuple[Timing, Timing]
"""the same candidate, timed twice in the same way"""


@dataclass(frozen=True)
class Explanation:
    """What goes with the spread of some pairs."""

    pairs: int
    taus: dict[str, float | None]
    """by cause; None = it never differed"""
    causes: list[str]
    """those that explain it, the strongest first"""
    calm_spread: float | None
    """median of |a - b| / mean of the half of the pairs with less of the strongest cause; None without one"""
    disturbed_spread: float | None
    """of the other half"""
    anchor_tau: float | None
    """of the anchor's time: the speed of the machine itself"""
    anchor_explains: bool
    anchor_spread: float | None
    """median of |a - b| / mean of the anchor; None = not timed"""


def mean_of_causes(seen: Sequence[Disturbance]) -> dict[str, float]:
    """By cause, over some timings; empty for none."""
    return {name: statistics.mean(map(part, seen)) for name, part in CAUSES.items()} if seen else {}


def taus(pairs: Mapping[str, Pair]) -> dict[str, float | None]:
    """Of each cause with the time, over the pairs."""
    slower = {name: _relative(first.secs, second.secs) for name, (first, second) in pairs.items()}
    return {cause: kendall_tau_b(slower, _differences(pairs, part)) for cause, part in CAUSES.items()}


def explain(pairs: Mapping[str, Pair]) -> Explanation | None:
    """What explains the spread of the pairs; None where fewer than two were watched."""
    if len(pairs) < 2:
        return None
    found = taus(pairs)
    bar = _bar(len(pairs))
    causes = sorted(
        (cause for cause, tau in found.items() if _is_above(tau, bar)), key=lambda cause: -(found[cause] or 0)
    )
    halves = _halves(pairs, CAUSES[causes[0]]) if causes else (None, None)
    anchored = {name: pair for name, pair in pairs.items() if all(each.anchor_ratio > 0 for each in pair)}
    anchor_tau = _anchor_tau(anchored)
    return Explanation(
        pairs=len(pairs),
        taus=found,
        causes=causes,
        calm_spread=halves[0],
        disturbed_spread=halves[1],
        anchor_tau=anchor_tau,
        anchor_explains=_is_above(anchor_tau, bar),
        anchor_spread=_spread([(first.anchor_ratio, second.anchor_ratio) for first, second in anchored.values()]),
    )


def _anchor_tau(pairs: Mapping[str, Pair]) -> float | None:
    slower = {name: _relative(first.secs, second.secs) for name, (first, second) in pairs.items()}
    anchor = {name: _relative(first.anchor_ratio, second.anchor_ratio) for name, (first, second) in pairs.items()}
    return kendall_tau_b(slower, anchor)


def _bar(pairs: int) -> float:
    """What tau must reach: its standard deviation is Kendall's (1938), of two orders that are independent."""
    sigma = math.sqrt(2 * (2 * pairs + 5) / (9 * pairs * (pairs - 1)))
    return max(LEAST_TAU, _SIGMAS * sigma)


def _is_above(tau: float | None, bar: float) -> bool:
    return tau is not None and tau >= bar


def _differences(pairs: Mapping[str, Pair], part: Callable[[Disturbance], float]) -> dict[str, float]:
    return {name: part(second.disturbance) - part(first.disturbance) for name, (first, second) in pairs.items()}


def _halves(pairs: Mapping[str, Pair], part: Callable[[Disturbance], float]) -> tuple[float | None, float | None]:
    """The spread of the pairs with less of a cause, and of those with more."""
    ordered = sorted(pairs.values(), key=lambda pair: max(part(each.disturbance) for each in pair))
    middle = len(ordered) // 2
    calm, disturbed = (
        _spread([(first.secs, second.secs) for first, second in half]) for half in (ordered[:middle], ordered[middle:])
    )
    return calm, disturbed


def _spread(pairs: Sequence[tuple[float, float]]) -> float | None:
    return statistics.median(abs(_relative(*pair)) for pair in pairs) if pairs else None


def _relative(first: float, second: float) -> float:
    """How much more the second is, over their mean."""
    return (second - first) * 2 / (first + second)
