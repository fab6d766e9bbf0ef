"""The times of every setting over those of the reference, by matplotlib."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fractune.text.figure import draw_panels, save_figure
from fractune.text.text import percent_text, score_text

_COLUMNS = 4
_CHARACTERS_AN_INCH = 11
_PASSES = (("#0072B2", "o"), ("#D55E00", "^"))
"""colour and marker of each pass: blue and vermilion of Okabe and Ito, which colour-blind people tell apart"""


def draw_noise(report: Mapping[str, Any], path: Path) -> None:
    """Draw one scatter for each setting of `report` (of `fractune noise`) to `path`. Raises StateUnusable."""
    from matplotlib.figure import Figure

    reference, *others = report["settings"]
    truth = {name: statistics.mean(secs) for name, secs in reference["median_s"].items() if None not in secs}
    columns = min(len(others), _COLUMNS)
    rows = math.ceil(len(others) / columns)
    figure = Figure(figsize=(0.6 + 2.8 * columns, 0.9 + 2.9 * rows), layout="constrained")
    draw = partial(_draw_setting, truth=truth)
    grid, *legend = draw_panels(figure, others, columns, draw, same_scale=True)
    line = int(figure.get_figwidth() * _CHARACTERS_AN_INCH)
    figure.supxlabel(textwrap.fill(f"reference: {reference['name']}, two passes (ms)", line), fontsize=10)
    figure.supylabel("this setting (ms)", fontsize=10)
    title = f"{report['operator']} at {report['share']}: each candidate's time by setting"
    figure.suptitle(textwrap.fill(title, line), fontsize=10)
    grid[0].legend(*legend, loc="upper left", fontsize=8)
    save_figure(figure, path)


def _draw_setting(axes: Any, setting: Mapping[str, Any], truth: Mapping[str, float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = min(truth.values()) * 1e3, max(truth.values()) * 1e3
    axes.plot([low, high], [low, high], color="0.6", linewidth=1, label="equal")
    for index, (colour, marker) in enumerate(_PASSES):
        names = [name for name in truth if setting["median_s"][name][index] is not None]
        if not names:
            continue
        axes.scatter(
            [truth[name] * 1e3 for name in names],
            [setting["median_s"][name][index] * 1e3 for name in names],
            s=14,
            color=colour,
            marker=marker,
            alpha=0.75,
            linewidths=0,
            label=f"pass {index + 1}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    tau, regret = score_text(setting["tau"]), percent_text(setting["regret"])
    axes.set_title(f"{setting['name']}\ntau {tau}, regret {regret}", fontsize=9)
