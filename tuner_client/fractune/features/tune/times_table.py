"""The distribution of a model's time: its heaviest operators at each share, inside the model and alone, their speed,
and all other calls by name.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from fractune.server.job_status import JobStatus, OperatorStatus, ShareResult
from fractune.text.rendering import Column, Table
from fractune.text.text import disturbed_notes, gflops_text, launch_notes, marked_time, roof_notes, roof_text, time_text
from fractune_core.analysis.inside import BETWEEN, MACHINE, slower_notes, why_slower
from fractune_core.analysis.roofline import Roof, from_memory_s, gflops, is_launch_bound, is_memory_bound, reached

_LEAST_PART = 0.02
"""of the model, from which a call has a row of its own"""
_LESS_THAN_NOTHING = (
    "No rest is left where operators take longer alone than inside the model: a measurement of one operator finds "
    "other caches and another clock."
)

_DISTURBED = "other programs had cores meanwhile"
"""why an operator took longer inside a model that was disturbed"""

_Cell = TypeVar("_Cell", str, Column)


@dataclass(frozen=True)
class OperatorTime:
    """One operator of a model at one share."""

    secs: float
    """of all its runs in one inference: weight times the best median, measured alone"""
    inside_s: float | None
    """the same inside the model; None when not known"""
    model_part: float
    """of the model's measured latency there"""
    gflops: float | None
    """10^9 operations a second; None when not known"""
    roof_part: float | None
    """1.0 = as fast as the share's arithmetic and memory allow; None when not known"""
    memory_bound: bool | None
    """whether the memory limits it, and not the arithmetic; None when not known"""
    launch_bound: bool | None
    """whether it takes hardly longer than its launch; None when not known, as on a CPU"""
    from_memory_s: float | None
    """reading and writing all its data in memory takes; None when not known"""
    is_disturbed: bool
    """whether other programs had cores of the share while the model was timed"""

    @property
    def why_slower(self) -> str:
        """Why it takes much longer inside the model than alone; empty if it does not, or hardly counts in the model."""
        if not self.inside_s or not self.model_part:
            return ""
        why = why_slower(self.inside_s, self.secs, self.inside_s / self.model_part, self.from_memory_s)
        return _DISTURBED if why and self.is_disturbed else why


def operator_time(operator: OperatorStatus, result: ShareResult, roof: Roof | None) -> OperatorTime | None:
    """None when the operator was not measured there."""
    best_s = operator.best_s.get(result.share)
    if best_s is None or result.tuned_s <= 0:
        return None
    secs = operator.weight * best_s
    work, launch_s = operator.arithmetic, None if roof is None else roof.launch_s
    once_s = from_memory_s(work, roof)
    memory_s = None if once_s is None else operator.weight * once_s
    limits = reached(work, roof, best_s), is_memory_bound(work, roof, best_s), is_launch_bound(best_s, launch_s)
    others = gflops(work, best_s), *limits, memory_s, result.is_disturbed
    inside = result.inside
    if inside is None or not inside.whole_s:
        return OperatorTime(secs, None, secs / result.tuned_s, *others)
    inside_s = sum(each.secs for each in inside.of_operator(operator.workload_hash))
    return OperatorTime(secs, inside_s, inside_s / inside.whole_s, *others)


def operators_s(job: JobStatus, share: str) -> float:
    """Seconds of all tuned operators in one inference."""
    return sum(each.weight * each.best_s.get(share, 0.0) for each in job.operators if each.selected)


REST = "rest of the model"


@dataclass(frozen=True)
class ModelPart:
    """What a part of a model's latency at one share is spent on."""

    name: str
    part: float
    """of the model's latency"""
    secs: float
    workload_hash: str = ""
    """of an operator; empty for any other call"""


def model_parts(job: JobStatus, result: ShareResult) -> list[ModelPart]:
    """Operators, other calls by name and the rest, the heaviest first: inside the model where that is known."""
    timed = {
        each.workload_hash: (each.name, time)
        for each in job.operators
        if each.selected and each.weight and (time := operator_time(each, result, job.roofs.get(result.share)))
    }
    found = [
        ModelPart(name, time.model_part, time.secs if time.inside_s is None else time.inside_s, key)
        for key, (name, time) in timed.items()
    ]
    calls, whole_s = _calls_s(result, timed), result.inside.whole_s if result.inside else 0.0
    found += [ModelPart(name, secs / whole_s, secs) for name, secs in calls.items()]
    rest_s = 0.0 if whole_s else result.tuned_s - operators_s(job, result.share)
    if found and rest_s > 0:
        found.append(ModelPart(REST, rest_s / result.tuned_s, rest_s))
    return sorted((each for each in found if each.part > 0), key=lambda each: -each.part)


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
    cells = [(*_operator_cells(names[key]), *_joined(map(_time_cells, found[key]), results)) for key in shown]
    if others:
        times = ([time for key in others if (time := found[key][at])] for at in range(len(results)))
        cells.append((f"{len(others)} others", "", "", *_joined(map(_sum_cells, times), results)))
    cells += _other_calls(results, {key for key in found if any(found[key])})
    rests = [None if each.inside else each.tuned_s - operators_s(job, each.share) for each in results]
    if any(rest is not None for rest in rests):
        cells.append((REST, "", "", *_joined(map(_rest_cells, rests, results), results)))
    numbers = (Column("weight", numbers=True, dispensable=3), Column("trials", numbers=True, dispensable=4))
    return Table(
        title=f"{job.model_name}: where the time goes",
        columns=(Column("operator", wraps_at=16), *numbers, *_joined(map(_time_columns, results), results)),
        cells=tuple(cells),
        rows=tuple(_row(names[key], each, time) for key in order for each, time in _measured(job, found[key])),
        notes=(
            *roof_notes(
                (time.roof_part for key in shown for time in found[key] if time),
                results[0].granted.unit if results else "",
                has_roof=any(each.share in job.roofs for each in results),
            ),
            *(
                f"memory: at {each.share} it gives reads alone {job.roofs[each.share].read_gb_per_s:.1f} GB/s"
                for at, each in enumerate(results)
                if any((time := found[key][at]) and time.memory_bound for key in shown)
            ),
            *launch_notes(time.launch_bound for key in shown for time in found[key] if time),
            *disturbed_notes(results),
            *_disturbed_inside(results),
            *((_LESS_THAN_NOTHING,) if any(rest is not None and rest < 0 for rest in rests) else ()),
            *slower_notes(
                (f"{names[key].name} at {each.share}", time.why_slower)
                for key in shown
                for each, time in _measured(job, found[key])
            ),
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
        "inside_s": time.inside_s,
        "why_slower": time.why_slower,
        "model_part": time.model_part,
        "gflops": time.gflops,
        "roof_part": time.roof_part,
        "memory_bound": time.memory_bound,
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


def _joined(found: Iterable[Sequence[_Cell]], results: Sequence[ShareResult]) -> Iterator[_Cell]:
    """The columns of each share, without the one of times inside the model where these are not known."""
    for cells, each in zip(found, results, strict=True):
        yield cells[0]
        yield from cells[1:] if each.inside else cells[2:]


def _time_columns(result: ShareResult) -> tuple[Column, ...]:
    """Seconds at the share alone and inside the model, the part of the model's, the speed, and that of the roof."""
    return (
        Column(f"{result.share} alone" if result.inside else result.share, numbers=True),
        Column("inside", numbers=True),
        Column("part", numbers=True, dispensable=1),
        Column("GFLOP/s", numbers=True, dispensable=5),
        Column("of its roof", numbers=True, dispensable=2),
    )


def _time_cells(time: OperatorTime | None) -> tuple[str, ...]:
    if time is None:
        return "-", "", "", "", ""
    roof = "" if time.roof_part is None else roof_text(time.roof_part, memory_bound=time.memory_bound)
    speed = "" if time.gflops is None else gflops_text(time.gflops)
    secs = marked_time(time.secs, launch_bound=time.launch_bound)
    return (
        secs,
        f"{_inside_text(time.inside_s)}{'+' if time.why_slower else ''}",
        _part_text(time.model_part),
        speed,
        roof,
    )


def _inside_text(secs: float | None) -> str:
    return "" if secs is None else time_text(secs)


def _part_text(part: float) -> str:
    return f"{part * 100:.0f} %"


def _sum_cells(times: Sequence[OperatorTime]) -> tuple[str, ...]:
    if not times:
        return "-", "", "", "", ""
    inside_s = None if None in (known := [each.inside_s for each in times]) else sum(filter(None, known))
    part = sum(each.model_part for each in times)
    return time_text(sum(each.secs for each in times)), _inside_text(inside_s), _part_text(part), "", ""


def _other_calls(results: Sequence[ShareResult], operators: Collection[str]) -> list[tuple[str, ...]]:
    """Rows of all calls but those of the `operators`: those that take a part of the model by name, and the others."""
    secs = [_calls_s(each, operators) for each in results]
    wholes = [each.inside.whole_s if each.inside else 0.0 for each in results]
    parts = {
        name: max(found.get(name, 0.0) / whole for found, whole in zip(secs, wholes, strict=True) if whole)
        for name in dict.fromkeys(chain(*secs))
    }
    shown = sorted((name for name in parts if parts[name] >= _LEAST_PART), key=lambda name: -parts[name])
    rows = [
        (
            name,
            "",
            "",
            *_joined((_call_cells(each.get(name), at) for each, at in zip(secs, results, strict=True)), results),
        )
        for name in shown
    ]
    if len(parts) > len(shown):
        others = [sum(each.values()) - sum(each.get(name, 0.0) for name in shown) if each else None for each in secs]
        label = f"{(count := len(parts) - len(shown))} other call{'s' if count > 1 else ''}"
        rows.append((label, "", "", *_joined(map(_call_cells, others, results), results)))
    return rows


def _calls_s(result: ShareResult, operators: Collection[str]) -> dict[str, float]:
    """Seconds by name of the calls but those of the `operators`; empty if the times inside are not known."""
    inside = result.inside
    if inside is None or not inside.whole_s:
        return {}
    named: dict[str, float] = {}
    for call in inside.calls:
        if call.workload_hash not in operators:
            name = call.name.removeprefix(MACHINE)
            named[name] = named.get(name, 0.0) + call.secs
    return named | {BETWEEN: inside.between_s}


def _call_cells(secs: float | None, result: ShareResult) -> tuple[str, ...]:
    if secs is None or result.inside is None or not result.inside.whole_s:
        return "", "", "", "", ""
    return "", time_text(secs), _part_text(secs / result.inside.whole_s), "", ""


def _disturbed_inside(results: Iterable[ShareResult]) -> tuple[str, ...]:
    shares = ", ".join(each.share for each in results if each.inside and each.is_disturbed)
    note = f"note: times inside the model and between its calls may be too long too at {shares}, without this mark"
    return (note,) if shares else ()


def _rest_cells(secs: float | None, result: ShareResult) -> tuple[str, ...]:
    """Nothing is left when operators take longer alone than within the model; a note says so."""
    if secs is None or result.tuned_s <= 0:
        return "", "", "", "", ""
    if secs < 0:
        return "none", "", "", "", ""
    return marked_time(secs, at_most=result.is_disturbed), "", _part_text(secs / result.tuned_s), "", ""
