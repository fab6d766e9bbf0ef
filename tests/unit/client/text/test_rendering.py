"""A table shows itself: as text, by rich, and as HTML that nothing in it can break out of."""

import io
import sys
from xml.etree import ElementTree as ET

import pytest
from rich.cells import cell_len
from rich.console import Console

from fractune.cli.commands.jobs import _jobs_table, _workers_table
from fractune.cli.commands.machine import _shares_table as shares_table
from fractune.features.tune.table import latency_table
from fractune.server.job_status import Worker, job_status
from fractune.text.rendering import Column, Table
from fractune_core.errors import FractuneError
from tests.support.client_results import JOB, SHARES, results, tuned_job
from tests.support.client_samples import DEVICE, granted, job_script
from tests.support.paths import REPOSITORY

HOSTILE = "<script>alert('[bold]&')</script>"
TABLE = Table(
    title=HOSTILE,
    columns=(Column(HOSTILE), Column("time", numbers=True)),
    cells=((HOSTILE, "2.00 ms"), ("b", "10.0 ms")),
    rows=({"name": "a", "time_s": 2e-3}, {"name": "b", "time_s": 1e-2}),
    notes=(HOSTILE,),
)


def test_text_is_the_table_and_its_notes_without_colours() -> None:
    text = str(TABLE)
    assert text == repr(TABLE)
    assert "\x1b" not in text
    assert "[bold]" in text  # no markup, but what it says
    assert "│ 10.0 ms │" in text
    assert text.splitlines()[-1] == HOSTILE


def test_rich_shows_it_in_a_terminal() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(TABLE)
        assert console.export_text().count(HOSTILE) == 4


def test_html_is_escaped_and_well_formed() -> None:
    page = ET.fromstring(f"<page>{TABLE._repr_html_()}</page>")  # noqa: S314  - we wrote it
    assert page.find(".//script") is None
    assert [cell.text for cell in page.iter("td")] == [HOSTILE, "2.00 ms", "b", "10.0 ms"]
    assert [page.findtext("table/caption"), page.findtext("p")] == [HOSTILE, HOSTILE]
    (_, number) = page.iter("th")
    assert number.get("style") == "text-align: right"


def test_rows_are_plain_data_in_seconds() -> None:
    first, second = latency_table(job_status(job_script()[-1])).rows
    assert first == {
        "share": "cpu:1",
        "units": 1,
        "units_total": 2,
        "unit": "core",
        "untuned_s": 4e-3,
        "untuned_summed": False,
        "tuned_s": 2e-3,
        "speed_up": 2.0,
        "max_error": 1e-6,
        "launch_bound": None,
        "at_load": [],
        "served": {},
        "others_cores": 0.0,
        "disturbed": False,
    }
    assert second["speed_up"] == 3.0


def test_markup_and_what_a_terminal_acts_on_are_shown_as_they_are() -> None:
    hostile, shown = "[/b, 64] [batch, 64] \x1b]0;owned\x07", "[/b, 64] [batch, 64] \\x1b]0;owned\\x07"
    table = Table(title=hostile, columns=(Column(hostile),), cells=((hostile,),), notes=(hostile,))
    assert str(table).count(shown) == 4
    console = Console(width=120, record=True, file=io.StringIO(), force_terminal=True)
    console.print(table)
    assert console.export_text().count(shown) == 4


def test_every_table_of_the_client_is_this_one() -> None:
    """Another would have to escape by itself what models and workers say."""
    client = REPOSITORY / "tuner_client"
    makers = {path.relative_to(client).name for path in client.rglob("*.py") if "rich.table" in path.read_text()}
    assert makers == {"rendering.py"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_rows_become_a_data_frame(library: str) -> None:
    rows = ({"share": "cpu:1", "secs": 1, "gflops": None}, {"share": "cpu:2", "secs": 0.5, "gflops": 2.0, "more": [1]})
    frame = getattr(Table((), (), rows), f"to_{library}")()
    assert list(frame.columns) == ["share", "secs", "gflops", "more"]
    assert list(frame["secs"]) == [1.0, 0.5]
    assert frame.shape == (2, 4)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(FractuneError, match=f"install the package '{library}'"):
        getattr(TABLE, f"to_{library}")()


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
def test_a_table_fits_80_columns_and_a_pipe_gets_every_column(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(TABLES[name], 80)
    *grid, last = text.splitlines()
    grid += [] if last.startswith("left out: ") else [last]
    assert max(map(cell_len, grid)) <= 80
    for share in SHARES if name in SHOW_SHARES else ():
        assert share in text
    assert (JOB in text) or name not in SHOW_JOBS
    assert "…" not in text
    TABLES[name].print()
    text = capsys.readouterr().out
    assert all(column.heading in text for column in TABLES[name].columns)
    assert "left out" not in text
    assert len(text.splitlines()) == len(TABLES[name].cells) + 4 + bool(TABLES[name].title)  # a row is a line


def test_a_name_wraps_behind_an_underscore() -> None:
    table = Table(columns=(Column("operator", wraps_at=16),), cells=(("fused_conv2d12_add2_relu2 (winograd4)",),))
    lines = [line.strip("│ ") for line in shown(table, 21).splitlines() if "│" in line]
    assert lines == ["fused_conv2d12_", "add2_relu2", "(winograd4)"]


NARROW = Table(
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
    text = shown(NARROW, width)
    assert all(each in text for each in has), text
    assert not any(each in text for each in lacks), text


def test_room_is_for_cells_before_headings() -> None:
    table = Table(columns=(Column("name", wraps_at=6), Column("two words")), cells=(("some more words", "1"),))
    assert "some more words" in shown(table, 27)
    assert "two words" not in shown(table, 27)
    assert "two words" in shown(table, 31)
