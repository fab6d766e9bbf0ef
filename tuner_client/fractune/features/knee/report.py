"""Times of a model or an operator at several shares, with its curve and knee; their tables, sentences and pictures."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fractune.features.matrix.cross_table import CrossTable
from fractune.server.job_status import ShareResult
from fractune.text.rendering import Column, Table, draw_panels, save_figure
from fractune.text.text import common_unit, disturbed_notes, launch_notes, marked_time, percent_text, time_text
from fractune_core.analysis.knee import Curve, CurveKind, Knee, find_knee, fit_curve
from fractune_core.analysis.limit_prediction import by_latency, by_rate, paced_rate_per_s, predictable
from fractune_core.analysis.roofline import is_launch_bound
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.cpu_limits import CpuLimit, LimitSize, Service, service_of_time
from fractune_core.errors import BadRequest, one_line
from fractune_core.served import LOAD_TEXT
from fractune_core.shares import GrantedShare, Share, unit_name, units_text

_LIMIT = "cpu-limit"


@dataclass(frozen=True)
class LimitLatency:
    """A model under a limit, with the number of threads that is best for latency there."""

    share: str
    threads: int
    rate_per_s: float
    """of Poisson arrivals: 30 % of what the model can answer under the limit"""
    p50_s: float
    p99_s: float
    loop_per_s: float
    """inferences a second in a loop, with the number of threads that is best for that"""
    at_most: bool = False
    """whether other programs disturbed times behind it: requests take at most as long"""


def split_limits(shares: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """The shares at which a model is timed, and the CPU limits. Raises BadRequest for a limit that no named number of
    cores allows to predict.
    """
    named = shares.split(",") if isinstance(shares, str) else shares
    parsed = list(map(Share.parse, named))
    limits = [share for share in parsed if share.mechanism == _LIMIT]
    stand_ins = [Service(share.cores, (1.0,), 1.0) for share in parsed if share.mechanism == "cpu"]
    for limit in limits:
        if not _fitting(stand_ins, LimitSize.parse(limit.size)):
            raise BadRequest(f"share '{limit}' is predicted from times at whole cores: name cpu:1 and cpu:2 too")
    return [str(share) for share in parsed if share.mechanism != _LIMIT], list(map(str, limits))


def limit_latencies(
    run_secs: Mapping[int, Sequence[float]], limits: Sequence[str], *, disturbed: bool = False
) -> tuple[LimitLatency, ...]:
    """By limit, the smallest first; `run_secs` are seconds of single inferences by cores. `disturbed`: by other
    programs.
    """
    services = [service_of_time(cores, statistics.median(secs)) for cores, secs in run_secs.items()]
    sizes = {text: LimitSize.parse(Share.parse(text).size) for text in limits}
    return tuple(
        replace(_latency(text, size, _fitting(services, size)), at_most=disturbed)
        for text, size in sorted(sizes.items(), key=lambda each: each[1].limit_m)
    )


def limits_table(name: str, found: Sequence[LimitLatency]) -> Table:
    """A row for each limit."""
    return Table(
        title=f"{name}: under CPU limits, predicted at {LOAD_TEXT}",
        columns=(
            *(Column("limit"), Column("threads", numbers=True), Column("requests/s", numbers=True)),
            *(Column(f"predicted {which}", numbers=True) for which in ("p50", "p99")),
            Column("in a loop", numbers=True),
        ),
        cells=tuple(
            (
                *(each.share, str(each.threads), f"{each.rate_per_s:.3g}"),
                *(marked_time(secs, at_most=each.at_most) for secs in (each.p50_s, each.p99_s)),
                f"{'>= ' if each.at_most else ''}{each.loop_per_s:.3g}/s",
            )
            for each in found
        ),
        rows=tuple(map(limit_json, found)),
        notes=(
            "nothing ran under a limit: latencies are simulated from the times at whole cores (docs/cpu-limits.md)",
        ),
    )


def limit_json(found: LimitLatency) -> dict[str, Any]:
    """Times in seconds."""
    return asdict(found)


def _fitting(services: Sequence[Service], size: LimitSize) -> list[Service]:
    """Those for which predictions hold under the limit."""
    limit = _limit(size)
    return [each for each in services if predictable(each, limit) and each.threads <= (size.span or each.threads)]


def _latency(share: str, size: LimitSize, services: Sequence[Service]) -> LimitLatency:
    limit = _limit(size)
    best = by_latency(services, limit)[0]
    loop_per_s = by_rate(services, limit)[0][1]
    return LimitLatency(share, best.threads, paced_rate_per_s(services, limit), best.p50_s, best.p99_s, loop_per_s)


def _limit(size: LimitSize) -> CpuLimit:
    return CpuLimit(size.limit_m, size.period_us)


@dataclass(frozen=True)
class KneeReport:
    """Times of one model or operator by share."""

    name: str
    """of the model or the operator"""
    unit: str
    """kind of the units: `core`, `sm`, `slice`"""
    shares: Mapping[int, str]
    """requested shares by granted units, ascending; several with the same units are joined by commas"""
    run_secs: Mapping[int, Sequence[float]]
    """all repeats in seconds by units, ascending"""
    curve: Curve
    """of the medians"""
    knee: Knee
    launches_s: Mapping[int, float] = field(default_factory=dict)
    """seconds of the launches of its kernels by units, where they are known: on a GPU"""
    disturbed: Mapping[int, ShareResult] = field(default_factory=dict)
    """whole models' times that other programs disturbed, by units"""

    def __repr__(self) -> str:
        return f"KneeReport({one_line(self.name)}: {self.knee.reason})"

    def kept(self, units: int) -> float:
        """The part of the cores that other programs left; 1.0 if they did not disturb the times."""
        return self.disturbed[units].kept if units in self.disturbed else 1.0

    def is_launch_bound(self, units: int) -> bool | None:
        """Whether the time at these units is hardly longer than the launches; None if that is not known."""
        return is_launch_bound(self.curve.measured.get(units), self.launches_s.get(units))


def knee_report(
    name: str, measured: Mapping[str, tuple[int, Sequence[float]]], units_total: int, slack: float, unit: str = "unit"
) -> KneeReport:
    """Fit a curve to `measured` and find its knee: by share, the granted units and all repeats in seconds.

    Repeats of shares with the same units are combined. Raises BadRequest if there are no measurements, a share has no
    repeats, a time is not positive and finite, or a share exceeds the device.
    """
    shares: dict[int, str] = {}
    run_secs: dict[int, list[float]] = {}
    for share, (units, secs) in sorted(measured.items(), key=lambda each: each[1][0]):
        if not secs:
            raise BadRequest(f"{name} has no times at {share}; measure it there, or leave the share out")
        shares[units] = f"{shares[units]}, {share}" if units in shares else share
        run_secs.setdefault(units, []).extend(secs)
    curve = fit_curve({units: statistics.median(secs) for units, secs in run_secs.items()})
    return KneeReport(name, unit, shares, run_secs, curve, find_knee(curve, units_total, slack))


def fastest_knee(table: CrossTable, granted: Mapping[str, GrantedShare], slack: float) -> KneeReport:
    """The knee of the fastest variants at each share, wherever they were tuned."""
    fastest = {share: variant for share in table.shares if (variant := table.fastest(share)) is not None}
    measured = {share: (granted[share].units, table.cells[name][share].run_secs) for share, name in fastest.items()}
    whole = next(iter(granted.values()))
    report = knee_report(table.name, measured, whole.units_total, slack, whole.unit)
    launches_s = {granted[share].units: table.launches_s[share] for share in fastest if share in table.launches_s}
    return replace(report, launches_s=launches_s, disturbed=_disturbed(table))


def at_load_knee(table: CrossTable, granted: Mapping[str, GrantedShare], slack: float) -> KneeReport | None:
    """The knee of the latencies at 30 % load of each share, with the best variants for requests. None if they were not
    measured at every share.
    """
    best = {each.share: found for each in table.results if (found := each.at_load_best) is not None}
    if set(best) != set(table.shares):
        return None
    measured = {share: (granted[share].units, found.latency_secs) for share, found in best.items()}
    whole = next(iter(granted.values()))
    report = knee_report(f"p50 at {LOAD_TEXT}", measured, whole.units_total, slack, whole.unit)
    return replace(report, disturbed=_disturbed(table))


def _disturbed(table: CrossTable) -> dict[int, ShareResult]:
    return {each.granted.units: each for each in table.results if each.is_disturbed}


def is_open(report: KneeReport) -> bool:
    """Whether two shares leave more than one answer."""
    return report.curve.kind is CurveKind.BOUND and report.knee.fewest != report.knee.most


def drawn_units(report: KneeReport) -> list[int]:
    """Units of the drawn curve, from the smallest measured to the whole: all, or some with the important ones."""
    first, last = min(report.run_secs), report.knee.units_total
    step = max(1, (last - first) // 200)
    return sorted({*range(first, last + 1, step), last, *_known(report)})


def _known(report: KneeReport) -> Iterable[int]:
    return report.run_secs if report.knee.units is None else [*report.run_secs, report.knee.units]


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
