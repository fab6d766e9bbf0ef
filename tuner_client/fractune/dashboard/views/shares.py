"""The shares that a fleet offers, and how it measures at them."""

from collections.abc import Mapping
from dataclasses import asdict

from fractune.dashboard.following import Snapshot
from fractune.dashboard.views.page import Block, Cell, Page, columns_of, moment
from fractune.server.job_status import OfferedShare
from fractune_core.analysis.noise import DEFAULT_MARGIN, NoiseAdvice
from fractune_core.shares import units_text

ELSEWHERE = "it lies in the state folder of each machine; 'fractune dashboard --state' shows that of this one"
"""why the pages of a server have no advice"""


Advice = Mapping[str, NoiseAdvice | None]
"""of `fractune noise`, by share; None where it has not measured"""


def shares(seen: Snapshot, advice: Advice | str) -> Page:
    """A text in place of the `advice` says why it is not known."""
    columns = columns_of("share, granted, proved, device, #cores or SMs, #cache, #measurers")
    return Page(
        "Shares",
        {
            "server": seen.address,
            "lost": seen.lost or None,
            "shares": [asdict(each) for each in seen.shares],
            "advice": None
            if isinstance(advice, str)
            else {share: asdict(each) for share, each in advice.items() if each is not None},
        },
        blocks=(
            Block("Offered now", columns, tuple(map(_row, seen.shares)), empty="no measurer is there; start a worker"),
            _advice_block(advice),
        ),
    )


def _advice_block(advice: Advice | str) -> Block:
    columns = columns_of(
        "share, #measurers at a time, #longer timing within, #rank agreement (tau), #loss of the winner, "
        "builds beside, measured"
    )
    if isinstance(advice, str):
        return Block("Advice of fractune noise", columns, (), empty=advice)
    rows = tuple(_advice_row(share, each) for share, each in advice.items())
    return Block("Advice of fractune noise", columns, rows, empty="no share is offered")


def _advice_row(share: str, advice: NoiseAdvice | None) -> tuple[Cell, ...]:
    if advice is None:
        default = f"{DEFAULT_MARGIN:g}x of the fastest"
        return (Cell(share), Cell("1"), Cell(default), Cell("-"), Cell("-"), Cell("-"), Cell("not yet: the default"))
    return (
        Cell(share),
        Cell(str(advice.measurers)),
        Cell(f"{advice.margin:g}x of the fastest"),
        Cell("-" if advice.tau is None else f"{advice.tau:.2f}"),
        Cell("-" if advice.regret is None else f"{advice.regret * 100:.1f} %"),
        Cell("yes" if advice.builds_beside else "no"),
        moment(advice.measured_at),
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
