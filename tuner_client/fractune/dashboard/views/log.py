"""Records of the tuning log: filtered, in pages, and one by one."""

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fractune.dashboard.views.page import Block, Cell, Dot, Dots, Field, Page, columns_of, job_path, moment
from fractune.features.client import Client
from fractune.features.log.code import ScheduleCode, decisions_text
from fractune.features.log.log import Records
from fractune.text.text import time_text
from fractune_core.errors import BadRequest, FractuneError, one_line
from fractune_core.names import Collection
from fractune_core.records import Kind, TuningRecord
from fractune_core.shares import units_text

FILTERS = ("model", "operator", "share", "device", "kind", "job", "namespace")
PAGE_SIZE = 100
_MOST_CODE = 200_000
"""characters"""
_CHOICES = {"kind": ("", *(each.value for each in Kind)), "order": ("newest", "fastest")}


def log(found: Records, given: Mapping[str, str]) -> Page:
    """`given` are the filters, `order` (`newest` or `fastest`) and `page`: the token of this page."""
    only = {name: given.get(name, "") for name in FILTERS}
    following = {**only, "order": given.get("order", "newest"), "page": found.next_page}
    links = [("next page", f"/log?{urlencode(following)}")] if found.next_page else []
    return Page(
        "Log",
        {
            "total": found.total,
            "filter": only,
            "next_page": found.next_page or None,
            "records": [record.to_json() for record in found],
        },
        facts=(("records that pass", Cell(f"{found.total:,}")),),
        blocks=(_records(found, place_of(given)),),
        form=[
            *(Field(name, only[name], name, _CHOICES.get(name, ())) for name in FILTERS),
            Field("order", given.get("order", "newest"), "order", _CHOICES["order"]),
        ],
        links=links,
        is_live=False,
    )


def place_of(given: Mapping[str, str]) -> dict[str, str]:
    """Where records are in the log."""
    return {name: given.get(name, "") for name in ("order", "page")}


def _records(found: Records, where: Mapping[str, str]) -> Block:
    """`where` they are in the log: its order and page."""
    columns = columns_of("measured, kind, operator, share, granted, #median, #spread, status, device, job")
    rows = tuple(_row(record, where) for record in found)
    return Block("Records", columns, rows, empty="no record passes this filter")


def _row(record: TuningRecord, where: Mapping[str, str]) -> tuple[Cell, ...]:
    granted = record.granted
    is_ok = bool(record.reported_secs)
    return (
        moment(record.measured_at, record_path(record, where)),
        Cell(record.kind.value),
        Cell(one_line(record.operator)),
        Cell(record.share),
        Cell(f"{granted.units} of {units_text(granted.units_total, granted.unit)}"),
        Cell(time_text(record.median_s) if is_ok else "-"),
        Cell(f"{record.spread:.0%}" if is_ok else "-"),
        Cell(record.status.value if is_ok else f"{record.status.value}: {one_line(record.cause)[:120]}"),
        Cell(record.device.label or record.device.isa),
        _job_cell(record),
    )


def record_path(record: TuningRecord, where: Mapping[str, str], more: str = "") -> str:
    """With what narrows the search for it, and where the search begins: the contract finds no record by its name.
    `more` is the rest of the path.
    """
    narrowed = {"job": _job_name(record), "operator": record.workload_hash, "namespace": record.namespace, **where}
    given = {name: value for name, value in narrowed.items() if value}
    return f"/log/records/{quote(record.record_id, safe='')}{more}?{urlencode(given)}"


def _job_cell(record: TuningRecord) -> Cell:
    name = _job_name(record)
    return Cell(Collection.JOBS.parse(name), job_path(name)) if name else Cell(one_line(record.job) or "-")


def _job_name(record: TuningRecord) -> str:
    """Empty without a job: an imported record may name anything as its own, which no filter takes."""
    name = record.job if record.job.startswith("jobs/") else f"jobs/{record.job}"
    try:
        return name if Collection.JOBS.parse(name) else ""
    except BadRequest:
        return ""


def record_page(record: TuningRecord, where: Mapping[str, str]) -> Page:
    """All that is known of one measurement; `where` it is in the log, as in `record_path`."""
    data = record.to_json()
    rows = tuple((Cell(name), Cell(_text(value))) for name, value in data.items() if name not in ("run_secs", "trace"))
    repeats = tuple((Cell(str(place)), Cell(time_text(secs))) for place, secs in enumerate(record.run_secs, 1))
    return Page(
        f"Record {record.record_id}",
        data,
        facts=(
            ("operator", Cell(one_line(record.operator))),
            ("share", Cell(record.share)),
            ("median", Cell(time_text(record.median_s) if record.reported_secs else "-")),
            ("job", _job_cell(record)),
        ),
        blocks=(
            Block("Fields", (("field", False), ("value", False)), rows),
            Block("Repeats", (("number", True), ("time", True)), repeats, empty="it has no times"),
        ),
        links=[("TIR and assembly", record_path(record, where, "/code"))] if record.reported_secs else (),
        dots=[_repeats(record)] if record.run_secs else (),
        is_live=False,
    )


def find_code(client: Client, record: TuningRecord) -> ScheduleCode | str:
    """It takes some seconds of the processor. A text says why there is none."""
    try:
        return client.log.code(record)
    except FractuneError as error:
        return str(error)


def code_page(record: TuningRecord, found: ScheduleCode | str) -> Page:
    """The program of a measured schedule; where it cannot be built, its decisions, and the command for elsewhere."""
    options = {"--job": _job_name(record), "--operator": record.workload_hash, "--namespace": record.namespace}
    words = [word for option, value in options.items() if value for word in (option, one_line(value))]
    command = shlex.join(["fractune", "log", "code", record.record_id, *words])
    made = found if isinstance(found, ScheduleCode) else None
    data = {"why": found} if made is None else {"tir": made.tir, "assembly": made.assembly}
    return Page(
        f"Code of record {record.record_id}",
        {"record_id": record.record_id, "decisions": decisions_text(record.trace), **data},
        facts=(
            ("operator", Cell(one_line(record.operator))),
            ("time", Cell(f"{time_text(record.median_s)} at {record.share}", record_path(record, {}))),
            ("implementation", Cell(record.implementation or "direct")),
            ("decisions", Cell(decisions_text(record.trace))),
            ("target", Cell(one_line(record.target))),
            *([("no code", Cell(one_line(str(found))))] if made is None else []),
            ("as a command", Cell(command, is_code=True)),
        ),
        blocks=[] if made is None else [_code_block("TIR", made.tir), _code_block("Assembly", made.assembly)],
        is_live=False,
    )


def _code_block(name: str, text: str) -> Block:
    left_out = len(text) - _MOST_CODE
    notes = (f"{left_out:,} more characters; the command prints all",) if left_out > 0 else ()
    rows = ((Cell(text[:_MOST_CODE], is_code=True),),) if text else ()
    return Block(name, (("", False),), rows, notes, "a GPU's code is not shown", is_folded=name != "TIR")


def _repeats(record: TuningRecord) -> Dots:
    """The repeats; those that chose the schedule, and are not reported, are rings."""
    least, greatest = min(record.run_secs), max(record.run_secs)
    width, choosing = greatest - least or 1.0, record.policy.choosing
    dots = [
        Dot(100 * (secs - least) / width, colour=None if place < choosing else 0, title=time_text(secs))
        for place, secs in enumerate(record.run_secs)
    ]
    title = f"repeats, from the fastest to the slowest{'; rings chose the schedule' if choosing else ''}"
    return Dots(title, (time_text(least), time_text(greatest)), dots)


def _text(value: Any) -> str:
    return one_line(str(value))[:2000]
