"""A path that cannot be written is refused before the work, by every command that writes a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune.cli import main
from fractune_core.errors import StateUnusable
from tests.support.client_samples import bundle_bytes
from tests.support.processes.server_process import model_bytes

_NOT_A_FOLDER = "taken"

WRITING = {
    "tune": ["tune", "m.onnx", "--shares", "cpu:1", "--out", f"{_NOT_A_FOLDER}/b.fractune"],
    "tune, a folder": ["tune", "m.onnx", "--shares", "cpu:1", "--out-dir", f"{_NOT_A_FOLDER}/folder"],
    "tune, a picture": ["tune", "m.onnx", "--shares", "cpu:1", "--picture", f"{_NOT_A_FOLDER}/p.svg"],
    "bundle": ["bundle", "m.onnx", "--shares", "cpu:1", "--out", f"{_NOT_A_FOLDER}/b.fractune"],
    "fuse": ["fuse", "m.onnx", "m.onnx", "--out", f"{_NOT_A_FOLDER}/m.fused"],
    "join": ["join", "b.fractune", "b.fractune", "--out", f"{_NOT_A_FOLDER}/j.fractune"],
    "run": ["run", "b.fractune", "--save-outputs", f"{_NOT_A_FOLDER}/outputs.npz"],
    "matrix": ["matrix", "m.onnx", "--shares", "cpu:1", "--csv", f"{_NOT_A_FOLDER}/m.csv"],
    "knee": ["knee", "m.onnx", "--shares", "cpu:1", "--picture", f"{_NOT_A_FOLDER}/k.svg"],
    "noise": ["noise", "--share", "cpu:1", "--picture", f"{_NOT_A_FOLDER}/n.svg"],
    "export": ["log", "export", f"{_NOT_A_FOLDER}/log.jsonl"],
    "export of a folder": ["log", "export", f"{_NOT_A_FOLDER}/log", "--format", "jsondatabase"],
}


@pytest.mark.parametrize("command", WRITING.values(), ids=WRITING)
def test_a_path_below_a_file_is_refused_before_the_work(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRACTUNE_STATE", str(tmp_path / "state"))
    Path("m.onnx").write_bytes(model_bytes(("op", 1)))
    Path("b.fractune").write_bytes(bundle_bytes())
    Path(_NOT_A_FOLDER).touch()
    assert main(command) == StateUnusable.exit_code
    (line,) = capfd.readouterr().err.splitlines()
    assert f"the folder {tmp_path / _NOT_A_FOLDER} cannot be written (Not a directory); pass another path" in line
    assert not (tmp_path / "state").exists()
