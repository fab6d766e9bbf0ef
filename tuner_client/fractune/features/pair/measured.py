"""A measured pair as the log keeps it, and the table of all."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Sequence

from fractune.features.pair.result import PairTimes
from fractune.text.rendering import Column, Table
from fractune.text.text import estimate_text, moment_text
from fractune_core.analysis.pairs import MeasuredPair, PairedModel
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import one_line


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
            *(estimate_text(one.slowdown), estimate_text(one.interference), each.verdict or "-"),
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
