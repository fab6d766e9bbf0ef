"""The shares that a fleet offers."""

from __future__ import annotations

from dataclasses import asdict

from fractune.dashboard.reading.following import Snapshot
from fractune.dashboard.views.page import Block, Cell, Page
from fractune.server.job_status import OfferedShare
from fractune_core.shares import units_text


def shares(seen: Snapshot) -> Page:
    columns = (
        *(("share", False), ("granted", False), ("proved", False), ("device", False), ("cores or SMs", True)),
        *(("cache", True), ("measurers", True)),
    )
    return Page(
        "Shares",
        {"server": seen.address, "lost": seen.lost or None, "shares": [asdict(each) for each in seen.shares]},
        blocks=(
            Block("Offered now", columns, tuple(map(_row, seen.shares)), empty="no measurer is there; start a worker"),
        ),
    )


def _row(each: OfferedShare) -> tuple[Cell, ...]:
    granted, device = each.granted, each.device
    return (
        Cell(granted.share),
        Cell(f"{granted.units} of {units_text(granted.units_total, granted.unit)}"),
        Cell("reserved" if granted.reserved else "confined, and proved from inside"),
        Cell(device.label or device.isa),
        Cell(str(device.units)),
        Cell(f"{device.l2_kib} KiB"),
        Cell(str(each.measurers)),
    )
