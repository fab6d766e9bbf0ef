from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

import fractune
from fractune.cli import main
from fractune.features.diff.diff import MODEL, Side, compared
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import RECORDS, Bundle
from fractune_core.files.replacing import replacing_file
from fractune_core.records import VALIDATION_POLICY, Kind, TuningRecord
from tests.support.client_samples import bundle_bytes, record
from tests.support.processes.scripted_server import ScriptedServer

BEFORE = Side("a", {"cpu:1": 4.0, "cpu:2": 2.0}, {"x": {"cpu:1": 3.0}, "y": {"cpu:1": 1.0}}, {"x": "conv", "y": "relu"})
AFTER = Side("b", {"cpu:1": 2.0}, {"x": {"cpu:1": 1.0}, "z": {"cpu:1": 5.0}}, {"x": "conv", "z": "new"})


def test_the_model_comes_first_and_then_what_changed_most() -> None:
    changes = compared(BEFORE, AFTER).changes
    assert [(each.what, each.share, each.speed_up) for each in changes] == [
        (MODEL, "cpu:1", 2.0),
        (MODEL, "cpu:2", None),
        ("conv", "cpu:1", 3.0),
        ("relu", "cpu:1", None),
        ("new", "cpu:1", None),
    ]
    assert [(each.before_s, each.after_s) for each in changes[-2:]] == [(1.0, None), (None, 5.0)]


def test_two_sides_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(BadRequest, match="no share and no operator in common"):
        compared(BEFORE, Side("c", {"cpu:4": 1.0}))


def test_a_time_of_zero_has_no_speed_up() -> None:
    change = compared(Side("a", {"cpu:1": 0.0, "cpu:2": 1.0}), Side("b", {"cpu:1": 1.0, "cpu:2": 1.0})).changes[0]
    assert change.speed_up is None


def bundle(path: Path, secs: float, *records: TuningRecord) -> Path:
    path.write_bytes(bundle_bytes(timed={"cpu:1": secs}))
    if records:
        with contextlib.closing(Bundle(path)) as opened, replacing_file(path) as file:
            lines = "\n".join(json.dumps(each.to_json()) for each in records)
            opened.copy_to(file, extra={RECORDS: lines.encode()})
    return path


def test_bundles_are_compared_without_a_server(tmp_path: Path) -> None:
    found = fractune.diff(bundle(tmp_path / "a.fractune", 2e-3), bundle(tmp_path / "b.fractune", 1e-3))
    assert found.changes[0].speed_up == 2.0
    assert "2.00x" in str(found.table)


def test_jobs_are_compared_by_the_command(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "j1", "jobs/j1", "--server", server.address, "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["what"] for each in said} == {MODEL, "fused_conv2d"}
    assert {each["speed_up"] for each in said} == {1.0}
    assert main(["diff", "j1", "missing.fractune", "--server", server.address]) == 8
    assert "no such file" in capsys.readouterr().err


def test_operators_are_compared_by_the_record_that_was_chosen(tmp_path: Path) -> None:
    """The first repeats choose; a record that looks faster in the others was not chosen."""
    divided = replace(VALIDATION_POLICY, repeats=2, choosing=1)
    chosen = record("aa", kind=Kind.VALIDATION, policy=divided, run_secs=(1.0, 3.0))
    other = record("bb", kind=Kind.VALIDATION, policy=divided, run_secs=(2.0, 2.0))
    before = bundle(tmp_path / "a.fractune", 1.0, chosen, other)
    found = fractune.diff(before, bundle(tmp_path / "b.fractune", 1.0, other))
    assert [(each.before_s, each.after_s) for each in found.changes[1:]] == [(chosen.median_s, other.median_s)]


def test_records_of_another_version_are_said(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.fractune", 1.0, record())
    with contextlib.closing(Bundle(path)) as opened, replacing_file(path) as file:
        opened.copy_to(file, extra={RECORDS: b'{"record_id": 5}'})
    with pytest.raises(BadBundle, match="a record that this version cannot read; upgrade"):
        fractune.diff(path, path)
