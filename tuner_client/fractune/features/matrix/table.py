"""The table tuned-at x run-at for people and for programs."""

import math
from pathlib import Path
from typing import Any

from fractune.features.matrix.cross_table import CrossTable, at_load_json, sentences, verdict
from fractune.text.figure import save_figure
from fractune.text.rendering import Column, Table
from fractune.text.text import disturbed_notes, launch_notes, marked_time
from fractune_core.analysis.slowdown_ci import Slowdown
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT

_DARKEST = 0.5
"""loss with the darkest colour"""


def draw_table(table: CrossTable, path: Path) -> None:
    """Draw a heat map: a row for each variant, a column for each share it ran at.

    The colour of a cell is its loss against the fastest variant in its column. Its text has the time and that loss; a
    difference within the noise is a tie. Raises StateUnusable.
    """
    from matplotlib.figure import Figure

    variants, shares = list(table.cells), list(table.shares)
    losses = {(v, s): lost for v in variants for s in shares if (lost := table.slowdown(v, s)) is not None}
    shades = [[_shade(losses.get((variant, share))) for share in shares] for variant in variants]
    figure = Figure(figsize=(3.0 + 1.9 * len(shares), 1.9 + 0.8 * len(variants)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shades, cmap="Blues", vmin=0, vmax=_DARKEST, aspect="auto")
    axes.set_xticks(range(len(shares)), [f"run at\n{share}" for share in shares])
    axes.set_yticks(range(len(variants)), [_row_label(variant) for variant in variants])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for row, variant in enumerate(variants):
        for column, share in enumerate(shares):
            lost = losses.get((variant, share))
            axes.text(column, row, _cell_text(table, variant, share, lost), **_cell_style(_shade(lost)))
    bar = figure.colorbar(image, ax=axes, ticks=[0, _DARKEST / 2, _DARKEST])
    bar.ax.set_yticklabels(["as the fastest", f"+{_DARKEST / 2 * 100:.0f} %", f"+{_DARKEST * 100:.0f} % or more"])
    bar.set_label("time against the fastest of the column")
    axes.set_title(f"{table.name}: latency by the share\nit was tuned at and the share it runs at", pad=14)
    save_figure(figure, path)


def _cell_text(table: CrossTable, variant: str, share: str, lost: Slowdown | None) -> str:
    if lost is None:
        return "not measured"
    cell = table.cells[variant][share]
    return f"{marked_time(cell.median_s, at_most=cell.kept < 1)}\n{verdict(table, variant, share, lost)}"


def _row_label(variant: str) -> str:
    return variant if variant in (UNTUNED_VARIANT, ROBUST_VARIANT) else f"tuned at {variant}"


def _shade(lost: Slowdown | None) -> float:
    """The loss for the colour: 0 for a tie, NaN if not measured."""
    if lost is None:
        return float("nan")
    return 0.0 if lost.is_tie else max(lost.median, 0.0)


def _cell_style(shade: float) -> dict[str, Any]:
    """Centred; light on dark cells."""
    return {"ha": "center", "va": "center", "color": "white" if shade > 0.6 * _DARKEST else "black"}


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
            *disturbed_notes(table.results),
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
    launch_bound = table.is_launch_bound(variant, share)
    time = marked_time(cell.median_s, launch_bound=launch_bound, at_most=cell.kept < 1)
    return f"{time}  {verdict(table, variant, share, lost)}"


def table_json(table: CrossTable) -> dict[str, Any]:
    """Times in seconds, losses as fractions."""
    return {
        "subject": table.name,
        "weight": table.weight,
        "cells": [dict(zip(COLUMNS, row, strict=True)) for row in rows(table)],
        "robust": _robust_json(table),
        "ranges": {each: _robust_json(table, each) for each in table.ranges},
        "launches_s": dict(table.launches_s),
        "sentences": sentences(table),
        "at_load": {each.share: at_load_json(each) for each in table.results},
    }


def _robust_json(table: CrossTable, within: str = "") -> dict[str, Any] | None:
    found = table.robust(within)
    return None if found is None else {"variant": found[0], "worst_at": found[1], "loss": found[2].median}


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
