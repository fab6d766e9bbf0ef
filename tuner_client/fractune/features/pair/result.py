"""Measurements of two co-runners on one processor."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from fractune.text.rendering import Column, Table
from fractune.text.text import moment_text, slowdown_text
from fractune_core.analysis.co_location import CoLocationFigures, RoundTimes, percentile
from fractune_core.analysis.pairs import MeasuredPair, PairedModel
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.disturbed import is_disturbed
from fractune_core.errors import one_line


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
    others_cores: float = 0.0
    """cores of both that other programs had in the rounds, on average"""


def measured_pair(found: PairTimes) -> MeasuredPair:
    """To be kept in a log, under a name of its own."""
    figures = found.figures
    models = [
        PairedModel(side.name, side.share, side.variant, *_figures(found, number))
        for number, side in enumerate(found.sides)
    ]
    return MeasuredPair(
        pair_id=uuid.uuid4().hex,
        models=tuple(models),
        arrangement=found.arrangement,
        how=found.how,
        host=socket.gethostname(),
        rounds=len(found.rounds),
        measured_at=time.time(),
        stp=figures.stp,
        verdict=figures.makespan_verdict or "",
        others_cores=found.others_cores,
    )


def pairs_table(pairs: Sequence[MeasuredPair]) -> Table:
    """A row for each model beside another one."""
    columns = (
        *(Column("model", wraps_at=20), Column("share"), Column("beside", wraps_at=20), Column("its share")),
        *(Column("slow-down", numbers=True), Column("by the co-runner", numbers=True), Column("verdict")),
        *(Column("host", dispensable=1), Column("measured", dispensable=2)),
    )
    cells = tuple(
        (
            *(one_line(one.model_name), one.share, one_line(other.model_name), other.share),
            *(slowdown_text(one.slowdown), slowdown_text(one.interference)),
            "disturbed" if is_disturbed(each.others_cores) else each.verdict or "-",
            *(one_line(each.host), moment_text(each.measured_at)),
        )
        for each in pairs
        for one, other in (each.models, each.models[::-1])
        if one.interference is not None
    )
    return Table(title="Models measured together", columns=columns, cells=cells)


def _figures(found: PairTimes, number: int) -> tuple[Estimate | None, Estimate | None]:
    """Slow-down and interference of a model; for another process None."""
    sides = found.figures.sides
    return (sides[number].r, sides[number].i) if number < len(sides) else (None, None)
