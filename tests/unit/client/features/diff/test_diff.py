from __future__ import annotations

import json
from pathlib import Path

import pytest

import fractune
from fractune.cli import main
from fractune.features.diff.diff import MODEL, Side, compared
from fractune_core.errors import BadRequest
from tests.support.client_samples import bundle_bytes
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


def bundle(path: Path, secs: float) -> Path:
    path.write_bytes(bundle_bytes(timed={"cpu:1": secs}))
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
