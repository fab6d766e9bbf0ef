"""Matches and records of the tuning log as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fractune.jobs import OperatorMatch
from fractune.reports.rendering import Column, Table
from fractune.reports.text import time_text
from fractune_core.records import Status, TuningRecord
from fractune_core.shares import units_text


def match_table(matches: Sequence[OperatorMatch]) -> Table:
    """Which record each operator would use, and why."""
    return Table(
        columns=tuple(map(Column, ("operator", "weight", "how", "time", "regret", "why"))),
        cells=tuple(map(_match_cells, matches)),
        rows=tuple(map(match_json, matches)),
    )


def match_json(each: OperatorMatch) -> dict[str, Any]:
    """`regret` a fraction, None where it was not measured; `record` a mapping, None for `none`."""
    return {
        "operator": each.operator.name,
        "weight": each.operator.weight,
        "workload_hash": each.operator.workload_hash,
        "how": each.how,
        "regret": each.regret,
        "reason": each.reason,
        "record": each.record.to_json() if each.record else None,
    }


def _match_cells(each: OperatorMatch) -> tuple[str, ...]:
    time_s = each.record.median_s if each.record else None
    regret = "not measured" if each.regret is None else f"{each.regret:.1%}"
    return each.operator.name, str(each.operator.weight), each.how, time_text(time_s), regret, each.reason


def records_table(records: Sequence[TuningRecord]) -> Table:
    """A row for each record; `rows` are whole records."""
    names = ("record", "kind", "operator", "share", "granted", "median", "spread", "status", "candidate")
    return Table(
        columns=tuple(map(Column, names)),
        cells=tuple(map(_record_cells, records)),
        rows=tuple(record.to_json() for record in records),
    )


def _record_cells(record: TuningRecord) -> tuple[str, ...]:
    granted = f"{record.granted.units} of {units_text(record.granted.units_total, record.granted.unit)}"
    status = record.status.value if not record.cause else f"{record.status.value}: {record.cause}"
    spread = f"{record.spread:.1%}" if record.status is Status.OK else "-"
    names = (record.record_id[:8], record.kind.value, record.operator, record.share, granted)
    return *names, time_text(record.median_s), spread, status, record.candidate_id[:8]
