"""Records of the tuning log: filtered, in pages, and one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fractune.dashboard.views.page import Block, Cell, Dot, Field, Page, Strip, job_path, moment
from fractune.features.log.log import Records
from fractune.text.text import time_text
from fractune_core.errors import BadRequest, one_line
from fractune_core.names import Collection
from fractune_core.records import Kind, TuningRecord
from fractune_core.shares import units_text

FILTERS = ("model", "operator", "share", "device", "kind", "job", "namespace")
PAGE_SIZE = 100
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
        blocks=(_records(found, {name: given.get(name, "") for name in ("order", "page")}),),
        form=[
            *(Field(name, only[name], name, _CHOICES.get(name, ())) for name in FILTERS),
            Field("order", given.get("order", "newest"), "order", _CHOICES["order"]),
        ],
        links=links,
        is_live=False,
    )


def _records(found: Records, where: Mapping[str, str]) -> Block:
    """`where` they are in the log: its order and page."""
    columns = (
        *(("measured", False), ("kind", False), ("operator", False), ("share", False), ("granted", False)),
        *(("median", True), ("spread", True), ("status", False), ("device", False), ("job", False)),
    )
    rows = tuple(_row(record, where) for record in found)
    return Block("Records", columns, rows, empty="no record passes this filter")


def _row(record: TuningRecord, where: Mapping[str, str]) -> tuple[Cell, ...]:
    granted = record.granted
    is_ok = bool(record.reported_secs)
    return (
        moment(record.measured_at, _path(record, where)),
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


def _path(record: TuningRecord, where: Mapping[str, str]) -> str:
    """With what narrows the search for it, and where the search begins: the contract finds no record by its name."""
    narrowed = {"job": record.job, "operator": record.workload_hash, **where}
    given = {name: value for name, value in narrowed.items() if value}
    return f"/log/records/{quote(record.record_id, safe='')}?{urlencode(given)}"


def _job_cell(record: TuningRecord) -> Cell:
    """An imported record may name anything as its job."""
    name = record.job if record.job.startswith("jobs/") else f"jobs/{record.job}"
    try:
        return Cell(Collection.JOBS.parse(name), job_path(name))
    except BadRequest:
        return Cell(one_line(record.job) or "-")


def record_page(record: TuningRecord) -> Page:
    """All that is known of one measurement."""
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
        strips=[_strip(record)] if record.run_secs else (),
        is_live=False,
    )


def _strip(record: TuningRecord) -> Strip:
    """The repeats; those that chose the schedule, and are not reported, are rings."""
    least, greatest = min(record.run_secs), max(record.run_secs)
    width = greatest - least or 1.0
    choosing = record.policy.choosing
    dots = [Dot(100 * (secs - least) / width, place < choosing) for place, secs in enumerate(record.run_secs)]
    title = f"repeats, from the fastest to the slowest{'; rings chose the schedule' if choosing else ''}"
    return Strip(title, time_text(least), time_text(greatest), dots)


def _text(value: Any) -> str:
    return one_line(str(value))[:2000]
