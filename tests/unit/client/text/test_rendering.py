"""A table shows itself: as text, by rich, and as HTML that nothing in it can break out of."""

from __future__ import annotations

import io
import sys
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from fractune.features.tune.table import latency_table
from fractune.server.job_status import job_status
from fractune.text.rendering import Column, Table
from fractune_core.errors import FractuneError
from tests.support.client_samples import job_script
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
