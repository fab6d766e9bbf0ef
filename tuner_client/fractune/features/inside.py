"""The time of a bundle's operators inside the model, beside their time alone, and all other calls by name."""

import statistics
from dataclasses import dataclass, replace

from fractune.text.rendering import Column, Table
from fractune.text.text import time_text
from fractune_core.analysis.inside import BETWEEN, MACHINE, SLOWER, Inside, is_slower
from fractune_core.analysis.match import How
from fractune_core.files.bundles import Bundle

_MOST_ROWS = 30
_OPERATOR, _KERNEL, _CALL = "operator", "kernel without a task", "other call"


@dataclass(frozen=True)
class InsideRow:
    """One operator, one other kernel, or one kind of call."""

    name: str
    kind: str
    calls: int
    inside_s: float
    """of all its calls in one inference"""
    alone_s: float | None
    """The same for an operator that was measured alone at the variant's share, also an untuned one; else None"""
    is_slower: bool = False
    """much slower inside than alone"""


def inside_rows(bundle: Bundle, variant: str, inside: Inside) -> list[InsideRow]:
    """The slowest first; what passes between the calls is the last row. Kernels of one operator are one row."""
    operators = {each["workload_hash"]: each for each in bundle.manifest.get("operators", ())}
    alone_s = _alone_s(bundle, variant)
    rows: dict[str, InsideRow] = {}
    for each in inside.calls:
        own = each.workload_hash
        known = rows.get(own or each.name)
        calls = each.calls + (known.calls if known else 0)
        secs = each.secs + (known.inside_s if known else 0.0)
        if own in operators:
            alone = alone_s[own] * calls if own in alone_s else None
            rows[own] = InsideRow(operators[own]["name"], _OPERATOR, calls, secs, alone)
        else:
            kind = _CALL if each.name.startswith(MACHINE) else _KERNEL
            rows[own or each.name] = InsideRow(each.name.removeprefix(MACHINE), kind, calls, secs, None)
    marked = [
        replace(row, is_slower=row.alone_s is not None and is_slower(row.inside_s, row.alone_s, inside.whole_s))
        for row in rows.values()
    ]
    slowest_first = sorted(marked, key=lambda row: -row.inside_s)
    return [*slowest_first, InsideRow(BETWEEN, _CALL, 0, inside.between_s, None)]


def _alone_s(bundle: Bundle, variant: str) -> dict[str, float]:
    """Median seconds of one run alone by workload hash, of operators that were measured at the variant's share."""
    records = {each["record_id"]: each for each in bundle.records()}
    found = {}
    for operator in bundle.manifest.get("operators", ()):
        choice = operator["by_variant"].get(variant, {})
        record = records.get(choice.get("record"))
        if record and choice.get("how") == How.EXACT and record["run_secs"]:
            found[operator["workload_hash"]] = statistics.median(record["run_secs"])
        elif record is None and variant in (untuned_s := operator.get("untuned_s", {})):
            found[operator["workload_hash"]] = untuned_s[variant]
    return found


def inside_table(rows: list[InsideRow], inside: Inside) -> Table:
    """Rows beyond the slowest are summed up by kind."""
    *calls, between = rows
    shown, others = calls[:_MOST_ROWS], calls[_MOST_ROWS:]
    for kind in dict.fromkeys(each.kind for each in others):
        of_kind = [each for each in others if each.kind == kind]
        secs = sum(each.inside_s for each in of_kind)
        shown.append(InsideRow(f"{len(of_kind)} others", kind, sum(each.calls for each in of_kind), secs, None))
    slower = any(each.is_slower for each in rows)
    note = f"+ inside the model an operator takes more than {SLOWER} times as long as alone"
    lengthened = time_text(max(0.0, inside.clocked_s - inside.whole_s))
    return Table(
        title=f"inside the model: {time_text(inside.whole_s)}",
        columns=(
            Column("call", wraps_at=20),
            Column("kind", wraps_at=15),
            Column("calls", numbers=True),
            Column("inside", numbers=True),
            Column("part", numbers=True),
            Column("alone", numbers=True),
        ),
        cells=tuple(_cells(each, inside.whole_s) for each in (*shown, between)),
        rows=tuple(map(vars, rows)),
        notes=(
            f"timing the calls lengthened the model by {lengthened}; these times leave out as much at each call",
            *([note] * slower),
        ),
    )


def _cells(row: InsideRow, whole_s: float) -> tuple[str, ...]:
    inside = f"{time_text(row.inside_s)}{'+' if row.is_slower else ''}"
    alone = "" if row.alone_s is None else time_text(row.alone_s)
    part = f"{row.inside_s / whole_s * 100:.0f} %"
    return row.name, row.kind, str(row.calls or ""), inside, part, alone
