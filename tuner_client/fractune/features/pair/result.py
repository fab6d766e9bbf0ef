"""What was measured of two models that share a processor."""

from __future__ import annotations

from dataclasses import dataclass

from fractune_core.analysis.sharing import RoundTimes, SharingFigures, percentile


@dataclass(frozen=True)
class PairSide:
    """One of the two, or a neighbour that is no model."""

    name: str
    """of the bundle, or `bubble:32MiB`"""
    share: str
    variant: str = ""
    """of the bundle, that ran at the share; empty of what is no model"""
    reason: str = ""
    """why this variant"""
    whole_variant: str = ""
    """the one that ran on the whole; empty where the whole cannot be had"""
    is_measured: bool = True
    """the bundle has times by which both were chosen: else what ran may be far from the best"""


@dataclass(frozen=True)
class RateLatency:
    """What a model's requests took that came at random at a rate, while the other's came at its own."""

    rate_per_s: float
    latency_s: tuple[float, ...] | None
    """of each request from its arrival to its answer; None where the model cannot serve as many together"""

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
    """What was measured of two models, or of one and a neighbour that is no model, in one arrangement."""

    arrangement: str
    """`cpu:1 + cpu:1, each on its own, of cpu:2`"""
    how: str
    """`own units`, `same units` or `in turn`"""
    whole: str | None
    """the share that both have together; None where it cannot be had"""
    sides: tuple[PairSide, PairSide]
    rounds: tuple[tuple[RoundTimes, ...], ...]
    """times of the models in each round, in the order of `sides`"""
    figures: SharingFigures
    """s, i, r of each model, STP, ANTT and the verdicts, with 95 % intervals"""
    latencies: tuple[RateLatency, ...] = ()
    """of each model, where a rate was stated"""
    notes: tuple[str, ...] = ()
