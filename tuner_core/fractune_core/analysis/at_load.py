"""Variants of a model at one share, timed in a loop and at 30 % load, and the choice among them.

A loop calls a variant again and again. At 30 % load, requests arrive at random moments. So threads sleep, caches are
cold, and a request may wait for the one before. A service sees these latencies.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from fractune_core.analysis.co_location import percentile
from fractune_core.analysis.slowdown_ci import LEVEL, is_closed, slowdown
from fractune_core.codec.plain_json import JsonObject
from fractune_core.served import Served, ServiceGoal, is_disturbed

_MOST_THREADS = 2**31 - 1


@dataclass(frozen=True)
class AtLoad(JsonObject):
    """A variant with a number of threads at one share. Repeats of the same number were taken next to each other, and
    all variants answered requests with the same arrivals.
    """

    variant: str
    threads: int
    loop_secs: tuple[float, ...]
    """of one inference in a loop, a value a round"""
    latency_secs: tuple[float, ...]
    """of each request from its arrival to its answer, in order; as many in each round"""

    def __post_init__(self) -> None:
        """Raises ValueError for what no measurement gives."""
        secs = (*self.loop_secs, *self.latency_secs)
        if not 1 <= self.threads <= _MOST_THREADS or not all(0 < each < math.inf for each in secs):
            raise ValueError("a variant at load has a number of threads or a time that cannot be")
        if not self.loop_secs or not self.latency_secs or len(self.latency_secs) % len(self.loop_secs):
            raise ValueError("a variant at load has no rounds, or rounds of different lengths")

    @property
    def loop_s(self) -> float:
        return statistics.median(self.loop_secs)

    @property
    def p50_s(self) -> float:
        return statistics.median(self.latency_secs)

    @property
    def p99_s(self) -> float | None:
        """None with fewer than 100 requests."""
        return percentile(self.latency_secs, 99)

    @property
    def served(self) -> Served:
        return Served(self.variant, self.threads, self.loop_s, self.p50_s, self.p99_s)

    @property
    def round_means_s(self) -> list[float]:
        """Mean latency of each round."""
        count = len(self.latency_secs) // len(self.loop_secs)
        return [statistics.fmean(self.latency_secs[at : at + count]) for at in range(0, len(self.latency_secs), count)]


def choices(timed: Sequence[AtLoad], others_cores: float) -> dict[ServiceGoal, AtLoad]:
    """The best by goal. In a loop it is the first, unless another is faster beyond the noise. For requests it is the
    best in a loop, unless another has smaller latencies beyond the noise.

    Empty if nothing was timed, or if other programs disturbed the times: on a busy machine several threads lose most.
    """
    if not timed or is_disturbed(others_cores):
        return {}
    loop = _kept_or_best(timed, timed[0], lambda each: each.loop_secs)
    return {"latency": _kept_or_best(timed, loop, lambda each: each.round_means_s), "throughput": loop}


def are_decided(timed: Sequence[AtLoad], rounds: int) -> bool:
    """Whether the `choices` need no further round, of `rounds` in all: each comparison of two has ended, in a loop and
    for requests (`is_closed`).
    """
    level = _level(len(timed))
    return all(
        is_closed(one.loop_secs, other.loop_secs, rounds, level)
        and is_closed(one.round_means_s, other.round_means_s, rounds, level)
        for one, other in combinations(timed, 2)
    )


def _level(count: int) -> float:
    """Each interval leaves out 5 % divided by the number of pairs (Bonferroni), so all comparisons of `count` variants
    hold together with 95 %.
    """
    return 1.0 - (1.0 - LEVEL) / max(1, math.comb(count, 2))


def _kept_or_best(timed: Sequence[AtLoad], kept: AtLoad, secs: Callable[[AtLoad], Sequence[float]]) -> AtLoad:
    """`kept` unless another beats it; then the fastest that is not beaten."""
    level = _level(len(timed))

    def is_beaten(one: AtLoad) -> bool:
        losses = (slowdown(secs(one), secs(other), interleaved=True, level=level) for other in timed if other != one)
        return any(lost.low > 0.0 for lost in losses)

    unbeaten = [each for each in timed if not is_beaten(each)] or list(timed)
    return kept if kept in unbeaten else min(unbeaten, key=lambda each: statistics.median(secs(each)))
