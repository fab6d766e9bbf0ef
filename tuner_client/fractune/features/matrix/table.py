"""The table tuned-at x run-at for people and for programs."""

from __future__ import annotations

import math
from typing import Any

from fractune.features.matrix.at_load import at_load_json
from fractune.features.matrix.cross_table import CrossTable, sentences, verdict
from fractune.text.launch_notes import launch_notes, marked_time
from fractune.text.rendering import Column, Table
from fractune_core.analysis.slowdown_ci import Slowdown

COLUMNS = ("tuned_at", "run_at", "median_s", "loss", "loss_low", "loss_high", "tie", "launch_bound", "run_secs")


def cross_text(table: CrossTable) -> Table:
    """A row for each variant, a column for each share; `rows` has a row with COLUMNS for each cell."""
    title = table.name if table.weight == 1 else f"{table.name} (x{table.weight})"
    return Table(
        title=f"{title}: tuned at x run at",
        columns=(Column("tuned at"), *(Column(f"run at {share}", numbers=True, wraps_at=13) for share in table.shares)),
        cells=tuple(
            (variant, *(cell_text(table, variant, share) for share in table.shares)) for variant in table.cells
        ),
        rows=tuple(dict(zip(COLUMNS, row, strict=True)) for row in rows(table)),
        notes=(
            *launch_notes(table.is_launch_bound(variant, share) for variant, share, *_ in table.all()),
            *sentences(table),
        ),
    )


def cell_text(table: CrossTable, variant: str, share: str) -> str:
    """`25.4 ms +14 % ± 3 %`, `22.2 ms fastest`, `22.3 ms tie`; `22.3 us * tie` near the launch floor; `-` if not
    measured.
    """
    cell, lost = table.cells.get(variant, {}).get(share), table.slowdown(variant, share)
    if cell is None or lost is None:
        return "-"
    time = marked_time(cell.median_s, launch_bound=table.is_launch_bound(variant, share))
    return f"{time}  {verdict(table, variant, share, lost)}"


def table_json(table: CrossTable) -> dict[str, Any]:
    """Times in seconds, losses as fractions."""
    robust = table.robust()
    return {
        "subject": table.name,
        "weight": table.weight,
        "cells": [dict(zip(COLUMNS, row, strict=True)) for row in rows(table)],
        "robust": None if robust is None else {"variant": robust[0], "worst_at": robust[1], "loss": robust[2].median},
        "launches_s": dict(table.launches_s),
        "sentences": sentences(table),
        "at_load": {each.share: at_load_json(each) for each in table.results},
    }


def rows(table: CrossTable) -> list[list[Any]]:
    return [
        [
            *(variant, share, cell.median_s, lost.median, *_interval(lost), lost.is_tie),
            *(table.is_launch_bound(variant, share), list(cell.run_secs)),
        ]
        for variant, share, cell, lost in table.all()
    ]


def _interval(lost: Slowdown) -> list[float | None]:
    """JSON has no NaN."""
    return [None, None] if math.isnan(lost.low) else [lost.low, lost.high]
