"""Measurements of two co-runners on one processor."""

from __future__ import annotations

from dataclasses import dataclass

from fractune_core.analysis.co_location import CoLocationFigures, RoundTimes, percentile


@dataclass(frozen=True)
class PairSide:
    """One co-runner: a model, or a process that streams through memory."""

    name: str
    """of the bundle, or `bubble:32MiB`"""
    share: str
    variant: str = ""
    """the variant of the bundle that ran at the share; empty for `bubble`"""
    reason: str = ""
    """why this variant"""
    whole_variant: str = ""
    """the variant that ran on the whole; empty if the whole cannot exist"""
    is_measured: bool = True
    """whether the bundle has times for both choices; otherwise the variants may be far from the best"""


@dataclass(frozen=True)
class RateLatency:
    """Latencies of a model's requests, which arrived at random at a rate, as did those of its co-runner."""

    rate_per_s: float
    latency_s: tuple[float, ...] | None
    """of each request from arrival to answer; None if the model cannot serve the rate together"""

    @property
    def p50_s(self) -> float | None:
        """None = not known."""
        return percentile(self.latency_s or (), 50)

    @property
    def p99_s(self) -> float | None:
        """None = not known: with fewer than 100 requests."""
        return percentile(self.latency_s or (), 99)


@dataclass(frozen=True)
class PairTimes:
    """Measurements of two co-runners in one arrangement."""

    arrangement: str
    """`cpu:1 + cpu:1, each on its own, of cpu:2`"""
    how: str
    """kind of the arrangement: `own units`, `same units` or `in turn`"""
    whole: str | None
    """the share of both together; None if it cannot exist beside its parts"""
    sides: tuple[PairSide, PairSide]
    rounds: tuple[tuple[RoundTimes, ...], ...]
    """times of the models in each round, in the order of `sides`"""
    figures: CoLocationFigures
    """s, i, r of each model, STP, ANTT and the verdicts, with 95 % intervals"""
    latencies: tuple[RateLatency, ...] = ()
    """of each model, at the stated rate or at 30 % load"""
    notes: tuple[str, ...] = ()
