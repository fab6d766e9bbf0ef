"""Knees as tables, JSON and sentences."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fractune.features.knee.report import KneeReport, drawn_units, is_open
from fractune.text.figure import draw_panels, save_figure
from fractune.text.rendering import Column, Table
from fractune.text.text import common_unit, disturbed_notes, launch_notes, marked_time, percent_text, time_text
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.shares import unit_name, units_text

_COLUMNS = 4
_PANELS_AT_MOST = 12
"""more would be too small to read"""
_MEASURED, _CURVE, _KNEE = "black", "#0072B2", "#D55E00"
"""black, blue and vermilion of Okabe and Ito, which colour-blind people tell apart"""
_VISIBLE = 0.005
"""a narrower band, as a part of the longest time, is not seen"""


def draw_knee(reports: Sequence[KneeReport], title: str, path: Path) -> None:
    """Draw a panel for each of `reports`, the model first, to `path`; the first 12 if there are more.

    Raises StateUnusable when the file cannot be written.
    """
    from matplotlib.figure import Figure

    drawn = reports[:_PANELS_AT_MOST]
    columns = min(len(drawn), _COLUMNS)
    rows = math.ceil(len(drawn) / columns)
    figure = Figure(figsize=(max(1.0 + 3.1 * columns, 6.0), 1.3 + 2.8 * rows), layout="constrained")
    _, *legend = draw_panels(figure, drawn, columns, _draw_panel)
    left_out = len(reports) - len(drawn)
    figure.suptitle(f"{title} ({left_out} more not drawn)" if left_out else title)
    figure.legend(*legend, loc="outside lower center", ncols=6 if columns > 2 else 3, fontsize=8)
    save_figure(figure, path)


def _draw_panel(axes: Any, report: KneeReport) -> None:
    unit_of_time, scale = common_unit(max(map(max, report.run_secs.values())))
    if report.knee.units is not None:
        _draw_curve(axes, report, report.knee.units, scale)
    _draw_measured(axes, report, scale)
    total = report.knee.units_total
    axes.set_ylim(bottom=0)
    axes.set_xlim(min(0.0, min(report.run_secs) - 0.05 * total), total * 1.05)
    axes.set_xticks(_ticks(report))
    axes.set_xlabel(unit_name(report.unit) + "s", fontsize=9)
    axes.set_ylabel(f"time ({unit_of_time})", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    name = report.name if len(report.name) <= 34 else f"{report.name[:31]}..."
    axes.set_title(f"{name}\n{_verdict(report)}", fontsize=9)


def _draw_curve(axes: Any, report: KneeReport, knee_units: int, scale: float) -> None:
    """Draw the band, the curve (unless only the band is known), the slack and the knee."""
    knee, curve = report.knee, report.curve
    units = drawn_units(report)
    bounds = [curve.bounds_at(each) for each in units]
    lows, highs = [low * scale for low, _ in bounds], [high * scale for _, high in bounds]
    if max(high - low for low, high in zip(lows, highs, strict=True)) > _VISIBLE * max(highs):
        label = "possible between the measured"
        axes.fill_between(units, lows, highs, color=_CURVE, alpha=0.15, linewidth=0, label=label)
    if curve.fit is not None:
        secs = [curve.secs_at(each) * scale for each in units]
        axes.plot(units, secs, color=_CURVE, linewidth=1.5, label="curve")
    allowed = curve.secs_at(knee.units_total) * (1 + knee.slack) * scale
    axes.axhline(allowed, color="0.35", linewidth=1, linestyle="--", label=f"whole + {percent_text(knee.slack)}")
    at = (knee_units, curve.secs_at(knee_units) * scale)
    axes.vlines(knee_units, 0, at[1], color=_KNEE, linewidth=1.2, linestyle=":")
    axes.scatter(*at, s=75, marker="D", facecolors="none", edgecolors=_KNEE, linewidths=1.8, zorder=4, label="knee")


def _draw_measured(axes: Any, report: KneeReport, scale: float) -> None:
    """Draw every repeat as a faint dash, the spread as a bar, the median as a dot."""
    for units, secs in report.run_secs.items():
        label = "all repeats" if len(secs) > 1 else None
        axes.vlines(units, min(secs) * scale, max(secs) * scale, color=_MEASURED, linewidth=1, zorder=3)
        axes.scatter(
            [units] * len(secs), [s * scale for s in secs], s=30, marker="_", color=_MEASURED, alpha=0.4, label=label
        )
    medians = [statistics.median(secs) * scale for secs in report.run_secs.values()]
    axes.scatter(list(report.run_secs), medians, s=18, color=_MEASURED, zorder=5, label="measured (median)")


def _ticks(report: KneeReport) -> list[int]:
    """The measured shares, the knee and the whole, without overlapping labels."""
    total = report.knee.units_total
    candidates = [total, report.knee.units, *report.run_secs]
    ticks: list[int] = []
    for units in candidates:
        if units is not None and all(abs(units - each) >= 0.08 * total for each in ticks):
            ticks.append(units)
    return sorted(ticks)


def _verdict(report: KneeReport) -> str:
    knee = report.knee
    if knee.units is None:
        return "one share measured: no knee"
    at = units_text(knee.units, report.unit)
    if is_open(report):
        return f"two shares measured: {knee.fewest} to {at} needed"
    return f"knee: {at}, {time_text(knee.secs)}{'' if knee.is_measured else ' predicted'}"


def knee_table(reports: Sequence[KneeReport], title: str) -> Table:
    """A row for each of `reports`: the time at every measured share, the knee, and its certainty.

    All have the same device and slack.
    """
    shares = {units: share for report in reports for units, share in report.shares.items()}
    measured = [Column(f"at {shares[units]}", numbers=True, dispensable=4) for units in sorted(shares)]
    verdict = [
        *(Column("knee", numbers=True), Column("there", numbers=True)),
        *(
            Column("slower than the whole", numbers=True, dispensable=1),
            Column("prediction error", numbers=True, dispensable=2),
        ),
        Column("curve", dispensable=3),
    ]
    return Table(
        title=title,
        columns=(Column("", wraps_at=16), *measured, *verdict),
        cells=tuple((report.name, *_times(report, sorted(shares)), *_verdict_cells(report)) for report in reports),
        rows=tuple(map(knee_json, reports)),
        notes=(
            *launch_notes(report.is_launch_bound(units) for report in reports for units in report.run_secs),
            *disturbed_notes(each for report in reports for each in report.disturbed.values()),
            *knee_lines(reports),
        ),
    )


def _times(report: KneeReport, units: Sequence[int]) -> list[str]:
    return [
        marked_time(
            report.curve.measured.get(each), launch_bound=report.is_launch_bound(each), at_most=each in report.disturbed
        )
        for each in units
    ]


def knee_json(report: KneeReport) -> dict[str, Any]:
    """`report` as JSON: times in seconds, `slack`, `loss` and `error` as fractions; None = not known.

    With two shares `knee_units` is an upper bound (`curve` is `bound`).
    """
    knee, curve = report.knee, report.curve
    return {
        "name": report.name,
        "unit": report.unit,
        "units_total": knee.units_total,
        "slack": knee.slack,
        "measured": [
            {
                "share": report.shares[units],
                "units": units,
                "median_s": curve.measured[units],
                "launch_bound": report.is_launch_bound(units),
                "disturbed": units in report.disturbed,
                "run_secs": list(secs),
            }
            for units, secs in report.run_secs.items()
        ],
        "curve": curve.kind.value,
        "fit": None if curve.fit is None else {"a": curve.fit.a, "c": curve.fit.c, "d": curve.fit.d},
        "error": curve.error,
        "knee_units": knee.units,
        "knee_share": None if knee.units is None else report.shares.get(knee.units),
        "knee_units_fewest": knee.fewest,
        "knee_units_most": knee.most,
        "knee_s": knee.secs,
        "knee_is_measured": knee.is_measured,
        "whole_s": knee.secs_whole,
        "whole_is_measured": knee.is_whole_measured,
        "loss": _loss(report),
        **dict(zip(("loss_low", "loss_high"), _loss_interval(report) or (None, None), strict=True)),
        "reason": knee.reason,
    }


def knee_lines(reports: Sequence[KneeReport]) -> list[str]:
    """A sentence for each of `reports`, with the prediction error if there is one."""
    return [f"{report.name}: {report.knee.reason}{_error_note(report)}" for report in reports]


def _verdict_cells(report: KneeReport) -> tuple[str, str, str, str, str]:
    knee = report.knee
    if knee.units is None:
        return "-", "-", "-", "-", report.curve.kind.value
    at = units_text(knee.units, report.unit)
    there = f"~{time_text(knee.secs)}"
    if knee.is_measured:
        there = marked_time(knee.secs, at_most=knee.units in report.disturbed)
    if is_open(report):
        at = f"{knee.fewest} to {at}"
    return at, there, _loss_text(report), percent_text(report.curve.error), report.curve.kind.value


def _loss(report: KneeReport) -> float | None:
    """Slow-down of the knee against the whole, as a fraction."""
    knee = report.knee
    return knee.secs / knee.secs_whole - 1 if knee.secs and knee.secs_whole else None


def _loss_interval(report: KneeReport) -> tuple[float, float] | None:
    """Ends of the 95 % interval of `_loss`. None if a time is predicted or of another share, or has few repeats."""
    knee, units, whole = report.knee, report.knee.units, report.knee.units_total
    if units is None or units == whole:
        return None
    measured = report.curve.measured
    if measured.get(units) != knee.secs or measured.get(whole) != knee.secs_whole:
        return None
    lost = slowdown(report.run_secs[units], report.run_secs[whole], interleaved=False)
    lost = lost.widened(report.kept(units), report.kept(whole))
    return None if math.isnan(lost.low) else (lost.low, lost.high)


def _loss_text(report: KneeReport) -> str:
    """`5.2 %`, with its interval `5.2 % (1.0 % .. 9.3 %)`."""
    interval = _loss_interval(report)
    text = percent_text(_loss(report))
    return text if interval is None else f"{text} ({' .. '.join(map(percent_text, interval))})"


def _error_note(report: KneeReport) -> str:
    error = report.curve.error
    doubt = "; disturbed times are behind it, so it may lie elsewhere" if report.disturbed else ""
    if error is None or not math.isfinite(error) or report.knee.is_measured or is_open(report):
        return doubt
    return f"; predicted times are off by about {percent_text(error)}{doubt}"
