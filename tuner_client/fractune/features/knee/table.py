"""Knees as tables, JSON and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fractune.features.knee.report import KneeReport, is_open
from fractune.text.launch_notes import launch_notes, marked_time
from fractune.text.rendering import Column, Table
from fractune.text.text import percent_text, time_text
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.shares import units_text


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
            *knee_lines(reports),
        ),
    )


def _times(report: KneeReport, units: Sequence[int]) -> list[str]:
    return [marked_time(report.curve.measured.get(each), launch_bound=report.is_launch_bound(each)) for each in units]


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
    there = time_text(knee.secs) if knee.is_measured else f"~{time_text(knee.secs)}"
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
    return None if math.isnan(lost.low) else (lost.low, lost.high)


def _loss_text(report: KneeReport) -> str:
    """`5.2 %`, with its interval `5.2 % (1.0 % .. 9.3 %)`."""
    interval = _loss_interval(report)
    text = percent_text(_loss(report))
    return text if interval is None else f"{text} ({' .. '.join(map(percent_text, interval))})"


def _error_note(report: KneeReport) -> str:
    error = report.curve.error
    if error is None or not math.isfinite(error) or report.knee.is_measured or is_open(report):
        return ""
    return f"; predicted times are off by about {percent_text(error)}"
