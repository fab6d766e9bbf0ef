"""`fractune fuse`: what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import fractune
from fractune.cli import main
from fractune.features.fuse import apart_text, slots_text
from fractune_core.errors import BadRequest
from fractune_core.files.fused import write_fused
from tests.support.processes.cli_process import write_model


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["a.onnx", "b.onnx", "--slots", "1"], 2, "slots is 1, and 2 variants are given; it must be 2 or more"),
        (["a.onnx", "missing.onnx"], 3, "missing.onnx: no such model file"),
        (["a.onnx", "b.onnx", "--input", "x"], 2, "--input 'x': write NAME=1,3,224,224"),
        (["a.onnx", "b.onnx", "--out", "."], 7, "out"),
        ([], 2, "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    options: list[str],
    code: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.onnx").write_bytes(b"never read")
    assert main(["fuse", *options]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


def test_a_variants_name_must_be_one_that_can_be_shown(tmp_path: Path) -> None:
    models = [write_model(tmp_path / name) for name in ("a.onnx", "b\x1b[2J.onnx")]
    with pytest.raises(BadRequest, match=r"a variant's name is 'b\\x1b\[2J'; name the file by 1 to 200 bytes"):
        fractune.fuse(models, out=tmp_path / "both.fused")


def test_no_peer_runs_a_fused_model(tmp_path: Path) -> None:
    path = tmp_path / "both.fused"
    models = [write_model(tmp_path / name) for name in ("a.onnx", "b.onnx")]
    with path.open("wb") as file:
        write_fused(file, ["a", "b"], models, 2)
    with pytest.raises(BadRequest, match=r"both.fused is a fused model, which no peer runs; leave until_beats out"):
        fractune.tune(path, "cpu:1", until_beats="onnxruntime", out=tmp_path / "m.fractune")


def test_slots_are_told() -> None:
    assert slots_text(["a", "b"]) == "2 of 2 filled: 0 a, 1 b"
    assert slots_text(["a", None]) == "1 of 2 filled: 0 a, 1 empty; a run computes all 2"
    assert apart_text(["sort"]) == "sort is called once for each slot"
    assert apart_text(["so\x1b[2Jrt"]) == r"so\x1b[2Jrt is called once for each slot"
    assert apart_text(["sort", "topk"]) == "sort, topk are called once for each slot"
