"""Tables on a narrow terminal and in a pipe: ids, shares and names of jobs stay whole, and columns go instead."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from fractune.cli.commands.jobs.jobs import _jobs_table, _workers_table
from fractune.cli.commands.machine.shares import _table as shares_table
from fractune.server.job_status import Worker
from fractune.text.rendering import Column, Table
from tests.support.client_results import JOB, SHARES, results, tuned_job
from tests.support.client_samples import DEVICE, granted

RESULTS = results()
WORKER = Worker(
    "workers/measure-cpu-1-a-long-host-name-12345", "measure", "a-long-host-name", 12345, 1.0, DEVICE, granted()
)
OFFER = {
    "share": "mig:1g.18gb",
    "units": 16,
    "units_total": 132,
    "unit": "sm",
    "fraction": 0.12,
    "memory_bytes": 1 << 34,
    "reserved": True,
    "proof": "read back from inside the share",
    "refusal": "",
}
TABLES = {
    "answer": RESULTS["tune"].table,
    "latency": RESULTS["tune"].latency,
    "matrix": RESULTS["tune"].matrix.table,
    "times": RESULTS["tune"].operators,
    "knee": RESULTS["knee"].table,
    "noise": RESULTS["noise"].table,
    "fit": RESULTS["fit"].table,
    "pair": RESULTS["pair"].table,
    "plan": RESULTS["plan"].table,
    "planned models": RESULTS["plan"].models,
    "cost": RESULTS["cost"].table,
    "cost by token": RESULTS["cost"].by_token,
    "match": RESULTS["match"].table,
    "log show": RESULTS["records"].table,
    "jobs": _jobs_table([tuned_job()] * 2),
    "workers": _workers_table([WORKER]),
    "shares": shares_table({"label": "a GPU", "offers": [OFFER] * 3}),
}
SHOW_SHARES = ("answer", "latency", "matrix", "times", "cost", "jobs")
SHOW_JOBS = ("cost", "jobs")


def shown(table: Table, width: int) -> str:
    """As on a terminal of this width."""
    output = io.StringIO()
    Console(file=output, width=10_000).print(table.fitted(width))
    return output.getvalue()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_80_columns(name: str) -> None:
    text = shown(TABLES[name], 80)
    *grid, last = text.splitlines()
    grid += [] if last.startswith("left out: ") else [last]
    assert max(map(cell_len, grid)) <= 80
    for share in SHARES if name in SHOW_SHARES else ():
        assert share in text
    assert (JOB in text) or name not in SHOW_JOBS
    assert "…" not in text


@pytest.mark.parametrize("name", TABLES)
def test_a_pipe_gets_every_column(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    TABLES[name].print()
    text = capsys.readouterr().out
    assert all(column.heading in text for column in TABLES[name].columns)
    assert "left out" not in text
    assert len(text.splitlines()) == len(TABLES[name].cells) + 4 + bool(TABLES[name].title)  # a row is a line


def test_a_name_wraps_behind_an_underscore() -> None:
    table = Table(columns=(Column("operator", wraps_at=16),), cells=(("fused_conv2d12_add2_relu2 (winograd4)",),))
    lines = [line.strip("│ ") for line in shown(table, 21).splitlines() if "│" in line]
    assert lines == ["fused_conv2d12_", "add2_relu2", "(winograd4)"]


TABLE = Table(
    columns=(Column("id"), Column("text", wraps_at=6), Column("a", dispensable=1), Column("b", dispensable=2)),
    cells=(("0123456789", "some more words", "aaaaaaaa", "bbbbbbbb"),),
)


@pytest.mark.parametrize(
    ("width", "has", "lacks"),
    [
        (80, ("some more words", "aaaaaaaa", "bbbbbbbb"), ("left out",)),
        (46, ("aaaaaaaa", "bbbbbbbb"), ("some more words", "left out")),
        (40, ("aaaaaaaa", "left out: b; --json has all"), ("bbbbbbbb",)),
        (30, ("some more", "left out: a, b; --json has all"), ("aaaaaaaa",)),
        (5, ("0123456789", "left out: a, b;"), ()),
    ],
)
def test_cells_wrap_first_then_the_most_dispensable_columns_go_and_a_line_names_them(
    width: int, has: tuple[str, ...], lacks: tuple[str, ...]
) -> None:
    text = shown(TABLE, width)
    assert all(each in text for each in has), text
    assert not any(each in text for each in lacks), text


def test_room_is_for_cells_before_headings() -> None:
    table = Table(columns=(Column("name", wraps_at=6), Column("two words")), cells=(("some more words", "1"),))
    assert "some more words" in shown(table, 27)
    assert "two words" not in shown(table, 27)
    assert "two words" in shown(table, 31)
