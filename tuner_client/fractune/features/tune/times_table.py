"""The distribution of a model's time: its heaviest operators at each share, their speed, and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fractune.server.job_status import JobStatus, OperatorStatus, ShareResult
from fractune.text.rendering import Column, Table
from fractune.text.text import gflops_text, launch_notes, marked_time, roof_notes, time_text
from fractune_core.analysis.roofline import Roof, gflops, is_launch_bound, reached

_LESS_THAN_NOTHING = (
    "Less than nothing is left over where operators take longer alone than inside the model: a measurement of one "
    "operator finds other caches and another clock."
)


@dataclass(frozen=True)
class OperatorTime:
    """One operator of a model at one share."""

    secs: float
    """of all its runs in one inference: weight times the best median, measured alone"""
    model_part: float
    """of the model's measured latency there"""
    gflops: float | None
    """10^9 operations a second; None when not known"""
    roof_part: float | None
    """1.0 = as fast as the share's arithmetic and memory allow; None when not known"""
    launch_bound: bool | None
    """whether it takes hardly longer than its launch; None when not known, as on a CPU"""


def operator_time(operator: OperatorStatus, result: ShareResult, roof: Roof | None) -> OperatorTime | None:
    """None when the operator was not measured there."""
    best_s = operator.best_s.get(result.share)
    if best_s is None or result.tuned_s <= 0:
        return None
    secs = operator.weight * best_s
    work, launch_s = operator.arithmetic, None if roof is None else roof.launch_s
    figures = gflops(work, best_s), reached(work, roof, best_s), is_launch_bound(best_s, launch_s)
    return OperatorTime(secs, secs / result.tuned_s, *figures)


def operators_s(job: JobStatus, share: str) -> float:
    """Seconds of all tuned operators in one inference."""
    return sum(each.weight * each.best_s.get(share, 0.0) for each in job.operators if each.selected)


def time_table(job: JobStatus, most: int | None = None) -> Table:
    """Of a finished job: a row for each operator, the heaviest first, and one for what is left over.

    With `most` there are no more rows than that for operators, and one for the others together; `rows` has all.
    """
    results = job.tuned_results
    found = {
        operator.workload_hash: [operator_time(operator, each, job.roofs.get(each.share)) for each in results]
        for operator in job.operators
        if operator.selected and operator.weight
    }
    names = {each.workload_hash: each for each in job.operators}
    order = sorted((name for name in found if any(found[name])), key=lambda name: -_weight(found[name]))
    shown, others = order[:most], order[len(order[:most]) :]
    cells = [(*_operator_cells(names[key]), *chain(*map(_time_cells, found[key]))) for key in shown]
    if others:
        sums = (sum(time.secs for key in others if (time := found[key][at])) for at in range(len(results)))
        cells.append((f"{len(others)} others", "", "", *chain(*map(_sum_cells, sums, results))))
    rests = [each.tuned_s - operators_s(job, each.share) for each in results]
    cells.append(("rest of the model", "", "", *chain(*map(_sum_cells, rests, results))))
    numbers = (Column("weight", numbers=True, dispensable=3), Column("trials", numbers=True, dispensable=4))
    return Table(
        title=f"{job.model_name}: where the time goes",
        columns=(
            Column("operator", wraps_at=16),
            *numbers,
            *chain(*(_time_columns(each.share) for each in results)),
        ),
        cells=tuple(cells),
        rows=tuple(_row(names[key], each, time) for key in order for each, time in _measured(job, found[key])),
        notes=(
            *roof_notes(
                (time.roof_part for key in shown for time in found[key] if time),
                results[0].granted.unit if results else "",
                has_roof=any(each.share in job.roofs for each in results),
            ),
            *launch_notes(time.launch_bound for key in shown for time in found[key] if time),
            *((_LESS_THAN_NOTHING,) if any(rest < 0 for rest in rests) else ()),
        ),
    )


def _weight(times: list[OperatorTime | None]) -> float:
    return sum(time.model_part for time in times if time)


def _measured(job: JobStatus, times: list[OperatorTime | None]) -> Iterator[tuple[ShareResult, OperatorTime]]:
    return ((each, time) for each, time in zip(job.tuned_results, times, strict=True) if time)


def _row(operator: OperatorStatus, result: ShareResult, time: OperatorTime) -> dict[str, Any]:
    return {
        "operator": operator.name,
        "implementation": operator.implementations.get(result.share),
        "weight": operator.weight,
        "trials": operator.trials,
        "share": result.share,
        "secs": time.secs,
        "model_part": time.model_part,
        "gflops": time.gflops,
        "roof_part": time.roof_part,
        "launch_bound": time.launch_bound,
    }


def _operator_cells(operator: OperatorStatus) -> tuple[str, ...]:
    return _named(operator), str(operator.weight), str(operator.trials)


def _named(operator: OperatorStatus) -> str:
    """`conv2d (winograd2)`, or `conv2d (winograd2 at cpu:1)` where another share has another implementation; the
    direct one has no name.
    """
    shares: dict[str, list[str]] = {}
    for share in operator.best_s:
        shares.setdefault(operator.implementations.get(share, ""), []).append(share)
    named = [
        name if len(shares) == 1 else f"{name} at {', '.join(shares[name])}" for name in sorted(filter(None, shares))
    ]
    return f"{operator.name} ({'; '.join(named)})" if named else operator.name


def _time_columns(share: str) -> tuple[Column, ...]:
    """Seconds at the share, their part of the model's, the speed, and the part of the roof."""
    return (
        Column(share, numbers=True),
        Column("part", numbers=True, dispensable=1),
        Column("GFLOP/s", numbers=True, dispensable=5),
        Column("of its roof", numbers=True, dispensable=2),
    )


def _time_cells(time: OperatorTime | None) -> tuple[str, ...]:
    if time is None:
        return "-", "", "", ""
    roof = "" if time.roof_part is None else f"{time.roof_part * 100:.0f} %"
    speed = "" if time.gflops is None else gflops_text(time.gflops)
    secs = marked_time(time.secs, launch_bound=time.launch_bound)
    return secs, f"{time.model_part * 100:.0f} %", speed, roof


def _sum_cells(secs: float, result: ShareResult) -> tuple[str, ...]:
    """Below 0 when operators take longer alone than within the model."""
    if result.tuned_s <= 0:
        return "-", "", "", ""
    sign = "-" if secs < 0 else ""
    return f"{sign}{time_text(abs(secs))}", f"{secs / result.tuned_s * 100:.0f} %", "", ""
