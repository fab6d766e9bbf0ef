"""Variants of a model at one share, timed in a loop and at 30 % load, and the choice among them.

A loop calls a variant again and again. At 30 % load, requests arrive at random moments. So threads sleep, caches are
cold, and a request may wait for the one before. A service sees these latencies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fractune_core.analysis.co_location import percentile
from fractune_core.analysis.slowdown_ci import LEVEL, slowdown
from fractune_core.codec.plain_json import JsonObject


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
    def round_means_s(self) -> list[float]:
        """Mean latency of each round."""
        count = len(self.latency_secs) // len(self.loop_secs)
        return [statistics.fmean(self.latency_secs[at : at + count]) for at in range(0, len(self.latency_secs), count)]


@dataclass(frozen=True)
class Served(JsonObject):
    """The best variant at a share for one goal, and its times in seconds."""

    variant: str
    threads: int
    loop_s: float
    p50_s: float
    """at 30 % load"""
    p99_s: float | None

    @classmethod
    def of(cls, found: AtLoad) -> Served:
        return cls(found.variant, found.threads, found.loop_s, found.p50_s, found.p99_s)


def throughput_choice(timed: Sequence[AtLoad]) -> AtLoad:
    """The first, unless another is faster in a loop beyond the noise: then the fastest that no other beats."""
    return _kept_or_best(timed, timed[0], lambda each: each.loop_secs)


def latency_choice(timed: Sequence[AtLoad]) -> AtLoad:
    """The choice for a loop, unless another has the smaller latencies at 30 % load beyond the noise."""
    return _kept_or_best(timed, throughput_choice(timed), lambda each: each.round_means_s)


def _kept_or_best(timed: Sequence[AtLoad], kept: AtLoad, secs: Callable[[AtLoad], Sequence[float]]) -> AtLoad:
    """Each interval leaves out 5 % divided by the number of pairs (Bonferroni)."""
    level = 1.0 - (1.0 - LEVEL) / max(1, math.comb(len(timed), 2))

    def is_beaten(one: AtLoad) -> bool:
        losses = (slowdown(secs(one), secs(other), interleaved=True, level=level) for other in timed if other != one)
        return any(lost.low > 0.0 for lost in losses)

    unbeaten = [each for each in timed if not is_beaten(each)] or list(timed)
    return kept if kept in unbeaten else min(unbeaten, key=lambda each: statistics.median(secs(each)))
