"""The table tuned-at x run-at as a picture, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fractune.features.matrix.cross_table import CrossTable, verdict
from fractune.text.figure import save_figure
from fractune.text.text import time_text
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
    return f"{time_text(table.cells[variant][share].median_s)}\n{verdict(table, variant, share, lost)}"


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
