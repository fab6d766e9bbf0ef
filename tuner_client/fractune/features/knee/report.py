"""Times of a model or an operator at several shares, with its curve and its knee."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fractune.features.matrix.cross_table import CrossTable
from fractune.server.job_status import ShareResult
from fractune.text.rendering import Column, Table
from fractune.text.text import marked_time
from fractune_core.analysis.knee import Curve, CurveKind, Knee, find_knee, fit_curve
from fractune_core.analysis.limit_prediction import by_latency, by_rate, paced_rate_per_s, predictable
from fractune_core.analysis.roofline import is_launch_bound
from fractune_core.cpu_limits import CpuLimit, LimitSize, Service, service_of_time
from fractune_core.errors import BadRequest, one_line
from fractune_core.served import LOAD_TEXT
from fractune_core.shares import GrantedShare, Share

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
