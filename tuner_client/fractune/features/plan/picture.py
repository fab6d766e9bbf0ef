"""A plan as a picture, by matplotlib: a bar for each device, with parts in the colours of their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fractune.features.plan.table import rate_text, summary
from fractune.text.figure import save_figure
from fractune_core.planning.plans import Plan, PlannedPart

_DEVICES_AT_MOST = 40
"""more would be too small to read"""
_COLOURS = (
    *("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2", "#D55E00"),
    *("#AADDFF", "#FFD699", "#88CCBB", "#DDDDDD", "#E5BFD3"),
)
"""of Okabe and Ito, which colour-blind people tell apart; then lighter ones. With more models they come again"""
_DARK = {"#0072B2", "#D55E00", "#009E73"}


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw the devices of a plan, the first 40 if there are more. Raises StateUnusable."""
    from matplotlib.figure import Figure

    drawn = plan.devices[:_DEVICES_AT_MOST]
    names = [model.name for model in plan.models]
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}
    figure = Figure(figsize=(9.0, 1.6 + 0.55 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    for row, parts in enumerate(drawn):
        label = "not used" if sum(part.length for part in parts) < plan.axis else None
        axes.barh(row, plan.axis, height=0.8, color="none", edgecolor="0.7", hatch="////", linewidth=0.6, label=label)
        for part in parts:
            _draw_part(axes, row, part, plan.axis, colours[part.model])
    axes.set_yticks(range(len(drawn)), [f"device {number}" for number in range(len(drawn))])
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlim(0, plan.axis)
    axes.set_xticks(range(plan.axis + 1) if plan.axis <= 16 else [0, plan.axis])
    axes.set_xlabel(_axis_label(plan))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    left_out = len(plan.devices) - len(drawn)
    title = summary(plan)[0].partition(", solved")[0]
    axes.set_title(f"{title} ({left_out} more not drawn)" if left_out else title, fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles[:1], labels[:1], loc="outside lower right", fontsize=8)
    save_figure(figure, path)


def _axis_label(plan: Plan) -> str:
    if plan.partitioning != "mig":
        return f"{plan.unit}s, from first to last"
    return f"memory slices; the title counts compute slices, {plan.units_per_device} a device"


def _draw_part(axes: Any, row: int, part: PlannedPart, axis: int, colour: str) -> None:
    axes.barh(row, part.length, left=part.place, height=0.8, color=colour, edgecolor="black", linewidth=0.8)
    room = int(part.length / axis * 130)
    """characters that fit"""
    share = part.share.partition(":")[2] or part.share
    lines = [_fitted(part.model, room), _fitted(f"{share}, {rate_text(part.throughput_per_s)}/s", room)]
    axes.text(
        part.place + part.length / 2,
        row,
        "\n".join(lines),
        ha="center",
        va="center",
        fontsize=7,
        color="white" if colour in _DARK else "black",
    )


def _fitted(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"
