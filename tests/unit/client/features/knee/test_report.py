"""Knees and limits as people see them: the slack they write, tables, JSON, sentences and pictures."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fractune.features.knee.report import (
    KneeReport,
    at_load_knee,
    draw_knee,
    drawn_units,
    fastest_knee,
    knee_json,
    knee_report,
    knee_table,
    limit_latencies,
    limits_table,
    split_limits,
)
from fractune.features.matrix.cross_table import model_table
from fractune_core.errors import BadRequest, StateUnusable
from tests.support.client_results import tuned_job

Measured = dict[str, tuple[int, Sequence[float]]]

THREE: Measured = {
    "mps:100": (132, [2.0e-3, 2.1e-3, 1.9e-3]),
    "mps:12": (16, [8.0e-3, 8.2e-3, 8.1e-3]),
    "mps:50": (66, [2.1e-3, 2.1e-3, 2.3e-3]),
}
TWO: Measured = {"mps:12": (16, [8e-4]), "mps:100": (132, [2e-4])}
ONE: Measured = {"mps:12": (16, [1.5])}


def report(name: str = "squeezenet", measured: Measured | None = None, slack: float = 0.1) -> KneeReport:
    return knee_report(name, THREE if measured is None else measured, 132, slack, "sm")


def test_a_report_takes_medians_by_granted_units() -> None:
    one = report()
    assert list(one.run_secs) == [16, 66, 132]
    assert one.curve.measured == {16: 8.1e-3, 66: 2.1e-3, 132: 2.0e-3}
    assert one.knee.units is not None
    assert 16 < one.knee.units <= 66
    one = report(measured={"mps:25": (32, [1.0, 2.0]), "mps:26": (32, [3.0]), "mps:100": (132, [1.0])})
    assert one.shares == {32: "mps:25, mps:26", 132: "mps:100"}
    assert one.curve.measured[32] == 2.0


def test_a_report_refuses_what_it_cannot_use() -> None:
    with pytest.raises(BadRequest, match="squeezenet has no times at mps:12"):
        report(measured={"mps:12": (16, [])})
    with pytest.raises(BadRequest, match="no share"):
        report(measured={})
    with pytest.raises(BadRequest, match="has 132"):
        report(measured={"mps:100": (144, [1.0])})


def test_large_devices_are_drawn_at_some_units() -> None:
    one = knee_report("x", {"a": (7, [9.0]), "b": (501, [2.0]), "c": (4096, [1.0])}, 4096, 0.1)
    units = drawn_units(one)
    assert len(units) < 250
    assert {7, 501, 4096, one.knee.units} <= set(units)


def test_the_table_says_times_knee_and_error() -> None:
    text = io.StringIO()
    reports = [report(), report("conv2d", TWO), report("dense", ONE)]
    Console(file=text, width=200).print(knee_table(reports, "time by share"))
    lines = {line.split()[1]: line for line in text.getvalue().splitlines() if line.startswith("│")}
    assert "at mps:12" in text.getvalue()
    assert all(part in lines["squeezenet"] for part in ("8.10 ms", "SMs", "~", "fitted"))
    assert all(part in lines["conv2d"] for part in ("800 us", "59 to 120 SMs", "bound"))
    assert all(part in lines["dense"] for part in ("1.50 s", "one point"))


def test_json_has_every_repeat_and_can_be_written() -> None:
    data = json.loads(json.dumps(knee_json(report())))
    assert data["measured"][0] == {
        "share": "mps:12",
        "units": 16,
        "median_s": 8.1e-3,
        "launch_bound": None,
        "disturbed": False,
        "run_secs": [8.0e-3, 8.2e-3, 8.1e-3],
    }
    assert (data["units_total"], data["slack"], data["curve"]) == (132, 0.1, "fitted")
    assert data["loss"] <= 0.1
    assert data["knee_units_fewest"] <= data["knee_units"] <= data["knee_units_most"]
    nothing = knee_json(report(measured=ONE))
    assert (nothing["knee_units"], nothing["loss"], nothing["fit"]) == (None, None, None)


def test_a_knee_by_disturbed_times_is_marked() -> None:
    job = tuned_job()
    busy = replace(job, results=(replace(job.results[0], others_cores=0.4), *job.results[1:]))
    granted = {each.share: each.granted for each in busy.results}
    quiet, found = (fastest_knee(model_table(each), granted, 0.1) for each in (job, busy))
    table = knee_table([found], "the knee")
    assert [cell.startswith("<= ") for cell in table.cells[0][1:3]] == [True, False]
    assert any("0.40 cores at cpu:1" in note for note in table.notes)
    assert any("disturbed times are behind it" in note for note in table.notes)
    assert [each["disturbed"] for each in table.rows[0]["measured"]] == [True, *[False] * 3]
    assert not any("disturbed" in note for note in knee_table([quiet], "the knee").notes)
    at_load = at_load_knee(model_table(busy), granted, 0.1)
    assert at_load is None or at_load.disturbed == found.disturbed


def test_a_measured_knee_names_its_share() -> None:
    data = knee_json(report(measured={"mps:50": (66, [1.0]), "mps:100": (132, [1.0]), "mps:12": (16, [4.0])}, slack=0))
    assert (data["knee_units"], data["knee_share"], data["knee_is_measured"]) == (66, "mps:50", True)


def test_a_measured_loss_has_its_interval() -> None:
    times = {
        "mps:50": (66, [1.05 + 0.001 * n for n in range(9)]),
        "mps:100": (132, [1.0 + 0.001 * n for n in range(9)]),
    }
    one = report(measured={**times, "mps:12": (16, [4.0])}, slack=0.05)
    data = knee_json(one)
    assert data["knee_share"] == "mps:50"
    assert 0.04 < data["loss_low"] < data["loss"] < data["loss_high"] < 0.06
    (cells,) = knee_table([one], "").cells
    assert f"5.0 % ({data['loss_low'] * 100:.1f} % .. {data['loss_high'] * 100:.1f} %)" in cells
    predicted = knee_json(report())
    assert (predicted["loss_low"], predicted["loss_high"]) == (None, None)


def test_every_kind_of_curve_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "knee.png"
    flat: Measured = {"a": (1, [2.0, 2.1]), "b": (66, [2.2]), "c": (132, [2.0])}
    draw_knee([report(), report("a name " * 20, TWO), report("dense", ONE), report("flat", flat)], "knees", path)
    assert path.stat().st_size > 1000


def test_the_legend_of_the_knee_names_only_what_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "knee.svg"
    draw_knee([report(measured=ONE)], "one", path)
    one = path.read_text(encoding="utf-8")
    flat: Measured = {"a": (1, [2.0]), "b": (66, [2.0]), "c": (132, [2.0])}
    draw_knee([report(measured=flat)], "flat", path)
    flat_drawn = path.read_text(encoding="utf-8")
    draw_knee([report(), report(measured=TWO)], "both", path)
    both = path.read_text(encoding="utf-8")
    for label, drawn in (
        ("measured (median)", (True, True, True)),
        ("possible between the measured", (False, False, True)),
        ("all repeats", (False, False, True)),
    ):
        assert tuple(f"<!-- {label} -->" in text for text in (one, flat_drawn, both)) == drawn, label


def test_what_is_not_drawn_is_said(tmp_path: Path) -> None:
    path = tmp_path / "knee.svg"
    draw_knee([report(f"operator {number}", ONE) for number in range(14)], "knees", path)
    assert "knees (2 more not drawn)" in path.read_text(encoding="utf-8")


def test_a_picture_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnusable, match="cannot write the picture"):
        draw_knee([report()], "knees", tmp_path / "file" / "knee.png")


def test_the_knee_at_load_is_of_the_best_for_requests_and_needs_every_share() -> None:
    job = tuned_job()
    table, granted = model_table(job), {each.share: each.granted for each in job.results}
    found = at_load_knee(table, granted, 0.1)
    assert found is not None
    assert found.name == "p50 at 30 % load"
    assert found.curve.measured[2] == pytest.approx(4.692e-3)
    assert (
        at_load_knee(replace(table, results=(replace(table.results[0], at_load=()), *table.results[1:])), granted, 0.1)
        is None
    )


SECS = {1: [0.0184] * 3, 2: [0.0096] * 3}


def test_limits_are_told_apart_from_shares_at_which_a_model_is_timed() -> None:
    assert split_limits("cpu:1,cpu:1500m,cpu:2, cpu:500m") == (["cpu:1", "cpu:2"], ["cpu:1500m", "cpu:500m"])
    assert split_limits(["mps:25", "full"]) == (["mps:25", "full"], [])


@pytest.mark.parametrize("shares", ["cpu:500m", "cpu:400m,cpu:2,cpu:4", "cpu:500m,mps:25", "cpu:500m@1,cpu:2,cpu:4"])
def test_a_limit_needs_a_time_with_few_enough_threads(shares: str) -> None:
    with pytest.raises(BadRequest, match=r"is predicted from times at whole cores: name cpu:1 and cpu:2 too$"):
        split_limits(shares)


def test_each_limit_has_its_best_number_of_threads() -> None:
    """Measured: p50 and p99 are 11 and 79 ms at 500m, 11 and 28 ms at 1000m with two threads; loops have 26.9/s with
    one thread at 500m, and 75.9/s with two at 1500m.
    """
    found = limit_latencies(SECS, ["cpu:1500m", "cpu:500m", "cpu:1000m", "cpu:400m", "cpu:900m@1"])
    assert [each.share for each in found] == ["cpu:400m", "cpu:500m", "cpu:900m@1", "cpu:1000m", "cpu:1500m"]
    assert [each.threads for each in found] == [1, 2, 1, 2, 2]
    below, half, _, one, more = found
    assert half.p50_s == pytest.approx(0.0098, rel=0.05)
    assert one.p99_s == pytest.approx(0.0255, rel=0.1)
    assert half.loop_per_s == pytest.approx(26.9, rel=0.05)
    assert more.loop_per_s == pytest.approx(75.9, rel=0.05)
    assert below.p99_s > half.p99_s > one.p99_s
    assert below.rate_per_s < half.rate_per_s < one.rate_per_s


def test_the_table_of_limits_says_that_nothing_ran_and_which_times_are_bounds() -> None:
    table = limits_table("minilm", limit_latencies(SECS, ["cpu:1500m"]))
    assert table.title == "minilm: under CPU limits, predicted at 30 % load"
    assert table.cells[0][:2] == ("cpu:1500m", "2")
    assert table.notes[0].startswith("nothing ran under a limit")
    assert table.rows[0]["share"] == "cpu:1500m"
    cells = limits_table("minilm", limit_latencies(SECS, ["cpu:1500m"], disturbed=True)).cells
    assert [cell[:3] for cell in cells[0][3:]] == ["<= ", "<= ", ">= "]
