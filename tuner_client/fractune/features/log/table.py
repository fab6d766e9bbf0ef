"""Matches and records of the tuning log as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fractune.server.job_status import OperatorMatch
from fractune.text.rendering import Column, Table
from fractune.text.text import gflops_text, percent_text, roof_notes, roof_text, time_text
from fractune_core.analysis.inside import Inside, slower_notes, why_slower
from fractune_core.analysis.match import How
from fractune_core.analysis.roofline import Arithmetic, Roof, from_memory_s, gflops, is_memory_bound, reached
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.records import UNTUNED, Status, TuningRecord
from fractune_core.shares import units_text

_Speed = tuple[float | None, float | None, bool | None]
"""GFLOP/s, the part of the roof, and whether the memory is that roof; None = not known"""


@dataclass(frozen=True)
class _Times:
    """Seconds of an operator at the share."""

    alone_s: float | None
    """One run of the record, or of the untuned default where that is to be used and was measured here; None = not
    known"""
    inside_s: float | None
    """of all runs of the same schedule in one inference; None = not known"""
    calls: int
    """these runs"""
    why_slower: str
    """why it takes much longer inside; empty if it does not, or hardly counts in the model"""


def match_table(matches: Sequence[OperatorMatch], roof: Roof | None = None, inside: Inside | None = None) -> Table:
    """The record that each operator would use, and the reason; `roof` and `inside` are the share's."""
    times = [_times(each, roof, inside) for each in matches]
    has_inside = any(each.inside_s is not None for each in times)
    columns = (
        *(Column("operator", wraps_at=16), Column("weight", dispensable=3), Column("how"), Column("alone")),
        *([Column("inside")] if has_inside else []),
        *(Column("GFLOP/s", dispensable=4), Column("of its roof", dispensable=2), Column("regret")),
        Column("why", wraps_at=24),
    )
    rows = tuple(_match_json(each, roof, time) for each, time in zip(matches, times, strict=True))
    exact = [each.record for each in matches if each.record and each.how == How.EXACT]
    roofs = roof_notes(
        (row["roof_part"] for row in rows if row["how"] == How.EXACT), _unit(exact), has_roof=roof is not None
    )
    return Table(
        columns=columns,
        cells=tuple(
            _match_cells(each, roof, time, has_inside=has_inside) for each, time in zip(matches, times, strict=True)
        ),
        rows=rows,
        notes=(*roofs, *slower_notes((row["operator"], row["why_slower"]) for row in rows)),
    )


def _match_json(each: OperatorMatch, roof: Roof | None, time: _Times) -> dict[str, Any]:
    """`regret` and `roof_part` are fractions, None where not known; `record` a mapping, None for `none`. The direct
    `implementation` has an empty name. `untuned_s` are seconds of the untuned default, where it is to be used and was
    measured at this share, else None. `inside_s` are seconds of all its runs in one inference.
    """
    speed_gflops, roof_part, memory_bound = _speed(each, roof)
    return {
        "operator": each.operator.name,
        "weight": each.operator.weight,
        "workload_hash": each.operator.workload_hash,
        "how": each.how,
        "regret": each.regret,
        "reason": each.reason,
        "gflops": speed_gflops,
        "roof_part": roof_part,
        "memory_bound": memory_bound,
        "implementation": each.record.implementation if each.record else None,
        "record": each.record.to_json() if each.record else None,
        "untuned_s": _untuned_s(each),
        "inside_s": time.inside_s,
        "why_slower": time.why_slower,
    }


def _speed(each: OperatorMatch, roof: Roof | None) -> _Speed:
    """For a record of the same share."""
    if each.record is None or each.how != How.EXACT:
        return None, None, None
    return _speed_of(each.record, each.operator.arithmetic, roof)


def _speed_of(record: TuningRecord, work: Arithmetic | None, roof: Roof | None) -> _Speed:
    time_s = record.median_s
    return gflops(work, time_s), reached(work, roof, time_s), is_memory_bound(work, roof, time_s)


def _untuned_s(each: OperatorMatch) -> float | None:
    """Of an operator without a record: the time of its untuned default at the share, if it was measured there."""
    return next(iter(each.operator.untuned_s.values()), None)


def _times(each: OperatorMatch, roof: Roof | None, inside: Inside | None) -> _Times:
    """A job may have timed the model with an older schedule: its time inside is not that of this match."""
    alone_s = each.record.median_s if each.record else _untuned_s(each)
    schedule = each.record.candidate_id if each.record else ""
    calls = [] if inside is None else inside.of_operator(each.operator.workload_hash)
    count = sum(call.calls for call in calls)
    if inside is None or not count or any(call.candidate != schedule for call in calls):
        return _Times(alone_s, None, 0, "")
    inside_s = sum(call.secs for call in calls)
    is_here = each.record is None or each.how == How.EXACT
    if alone_s is None or not is_here:
        return _Times(alone_s, inside_s, count, "")
    once_s = from_memory_s(each.operator.arithmetic, roof)
    memory_s = None if once_s is None else count * once_s
    return _Times(alone_s, inside_s, count, why_slower(inside_s, count * alone_s, inside.whole_s, memory_s))


def _match_cells(each: OperatorMatch, roof: Roof | None, time: _Times, *, has_inside: bool) -> tuple[str, ...]:
    regret = "not measured" if each.regret is None else percent_text(each.regret)
    speed_gflops, roof_part, memory_bound = _speed(each, roof)
    speeds = (gflops_text(speed_gflops), roof_text(roof_part, memory_bound=memory_bound))
    once_s = None if time.inside_s is None else time.inside_s / time.calls
    inside = (f"{time_text(once_s)}{'+' if time.why_slower else ''}",) if has_inside else ()
    name = _named(each.operator.name, each.record)
    shown = (name, str(each.operator.weight), each.how, time_text(time.alone_s), *inside)
    return *shown, *speeds, regret, each.reason


def records_table(
    records: Sequence[TuningRecord], arithmetic: Mapping[str, Arithmetic], roofs: Mapping[str, Roof]
) -> Table:
    """A row for each record.

    `rows` are whole records, with `implementation`, `gflops`, `roof_part`, `memory_bound` and `lost`, None if not
    known. `arithmetic` is that of known operators, by workload hash; `roofs` are those of known shares, by record id.
    """
    columns = (
        *(Column("record", dispensable=9), Column("kind", dispensable=2), Column("operator", wraps_at=16)),
        *(Column("share"), Column("granted", dispensable=3), Column("median"), Column("GFLOP/s", dispensable=6)),
        *(Column("of its roof", dispensable=4), Column("spread", dispensable=1), Column("lost", dispensable=5)),
        *(Column("status", wraps_at=16), Column("candidate", dispensable=8)),
    )
    speeds = [
        _speed_of(record, arithmetic.get(record.workload_hash), roofs.get(record.record_id)) for record in records
    ]
    return Table(
        columns=columns,
        cells=tuple(map(_record_cells, records, speeds)),
        rows=tuple(
            {
                **record.to_json(),
                "implementation": record.implementation,
                "gflops": speed[0],
                "roof_part": speed[1],
                "memory_bound": speed[2],
                "lost": _lost(record),
            }
            for record, speed in zip(records, speeds, strict=True)
        ),
        notes=roof_notes(
            (part for record, (_, part, _) in zip(records, speeds, strict=True) if record.status is Status.OK),
            _unit(records),
            has_roof=any(roof.has_rates for roof in roofs.values()),
        ),
    )


def _unit(records: Sequence[TuningRecord]) -> str:
    """`core` if any record is of a CPU, else `sm`; empty without records."""
    return min((record.granted.unit for record in records), default="")


def _named(operator: str, record: TuningRecord | None) -> str:
    """`fused_conv2d3_relu (winograd2)`: the operator, and its implementation unless that is the direct one."""
    return f"{operator} ({record.implementation})" if record and record.implementation else operator


def _record_cells(record: TuningRecord, speed: _Speed) -> tuple[str, ...]:
    granted = f"{record.granted.units} of {units_text(record.granted.units_total, record.granted.unit)}"
    status = record.status.value if not record.cause else f"{record.status.value}: {record.cause}"
    spread = percent_text(record.spread) if record.status is Status.OK else "-"
    untuned = f" ({UNTUNED_VARIANT})" if record.trace == UNTUNED else ""
    names = (record.record_id, record.kind.value, _named(record.operator, record) + untuned, record.share, granted)
    speeds = (gflops_text(speed[0]), roof_text(speed[1], memory_bound=speed[2]))
    lost = percent_text(_lost(record))
    return *names, time_text(record.median_s), *speeds, spread, lost, status, record.candidate_id


def _lost(record: TuningRecord) -> float | None:
    """The part of the time in which the measurement was kept from its cores."""
    return None if record.disturbance is None else record.disturbance.lost
