"""Tuning time against the ratio to a peer, by matplotlib: a panel for each share, a line for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fractune.text.figure import save_figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""of Okabe and Ito except the last; colour-blind people can distinguish them"""
_MARKERS = "osD^v<>P"
_TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)

Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""by share and model: seconds of tuning, and the ratio then"""


def draw_ratios(curves: Curves, peer: str, path: Path) -> None:
    """Draw `curves`, one at least, to `path`, with the peer as a line at 1. Raises StateUnusable."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.0 + 4.6 * len(curves), 4.6), layout="constrained")
    panels = list(figure.subplots(1, len(curves), squeeze=False, sharey=True).flat)
    models = list(dict.fromkeys(model for each in curves.values() for model in each))
    for axes, (share, by_model) in zip(panels, curves.items(), strict=True):
        _draw_panel(axes, by_model, models)
        axes.axhline(1.0, color="0.35", linewidth=1, linestyle="--", label=peer)
        axes.set_title(share)
    panels[0].set_ylabel(f"our time over that of {peer}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    figure.suptitle("Latency of the whole model against tuning time")
    save_figure(figure, path)


def _draw_panel(axes: Any, by_model: Mapping[str, Sequence[tuple[float, float]]], models: Sequence[str]) -> None:
    for model, points in by_model.items():
        place = models.index(model)
        style = {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)], "markersize": 4}
        axes.plot([secs / 60 for secs, _ in points], [ratio for _, ratio in points], label=model, **style)
    axes.set_yscale("log")
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.set_yticks([], minor=True)
    ratios = [ratio for points in by_model.values() for _, ratio in points]
    axes.set_ylim(0.8 * min(*ratios, 1.0), 1.25 * max(*ratios, 1.0))
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes of tuning")
    axes.spines[["top", "right"]].set_visible(False)
