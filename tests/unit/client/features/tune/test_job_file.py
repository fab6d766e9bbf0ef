from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.features.tune.job_file import Hours, expanded, read_job
from fractune_core.errors import BadRequest
from tests.support.processes.scripted_server import ScriptedServer

TWO = """
shares = "cpu:1,cpu:2"
trials = 8

[[models]]
file = "a.onnx"

[[models]]
file = "deep/b.onnx"
trials = 4
input = ["x=1,8", "y=1"]
exact = true
fresh = false
"""


def job_file(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_model_is_a_command_line_and_other_options_come_last(tmp_path: Path) -> None:
    path = job_file(tmp_path, TWO)
    assert list(expanded(["tune", "--quiet", "--job", str(path), "--trials", "2"])) == [
        ["tune", str(tmp_path / "a.onnx"), "--shares", "cpu:1,cpu:2", "--trials", "8", "--quiet", "--trials", "2"],
        [
            *("tune", str(tmp_path / "deep" / "b.onnx"), "--shares", "cpu:1,cpu:2", "--trials", "4"),
            *("--input", "x=1,8", "--input", "y=1", "--exact", "--quiet", "--trials", "2"),
        ],
    ]


def test_the_file_may_stand_behind_an_equals_sign(tmp_path: Path) -> None:
    path = job_file(tmp_path, "[[models]]\nfile = 'a.onnx'")
    assert list(expanded(["tune", f"--job={path}"])) == [["tune", str(tmp_path / "a.onnx")]]


@pytest.mark.parametrize("args", [[], ["tune", "m.onnx"], ["run", "--job", "x"]])
def test_other_command_lines_are_themselves(args: list[str]) -> None:
    assert list(expanded(args)) == [args]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no model"),
        ("models = 3", "names no model"),
        ("[[models]]\nshares = 'cpu:1'", r"models\[0\] has no file"),
        ("[[models]]\nfile = 'a'\ninput = {x = 1}", "input is a dict; write a text"),
        ("[hours]\nbegin = '25:00'\nend = '6:00'\n[[models]]\nfile = 'a'", "begin is '25:00'"),
        ("[hours]\nbegin = '6:00'\nend = '06:00'\n[[models]]\nfile = 'a'", "begin and end at the same time"),
        ("[hours]\nfrom = '6:00'\n[[models]]\nfile = 'a'", "unknown key 'from'"),
        ("[", "not a TOML file"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        read_job(job_file(tmp_path, text))


@pytest.mark.parametrize(
    ("hours", "at", "wait_s"),
    [
        (Hours(22 * 60, 6 * 60), (23, 0), 0),
        (Hours(22 * 60, 6 * 60), (5, 59), 0),
        (Hours(22 * 60, 6 * 60), (6, 0), 16 * 3600),
        (Hours(22 * 60, 6 * 60), (21, 59), 60),
        (Hours(60, 120), (1, 30), 0),
        (Hours(60, 120), (2, 0), 23 * 3600),
    ],
)
def test_models_wait_for_the_hours(hours: Hours, at: tuple[int, int], wait_s: float) -> None:
    assert hours.wait_s(datetime(2026, 1, 5, *at)) == wait_s  # noqa: DTZ001  local, as the file means it


def test_a_written_file_is_the_same_command(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = tmp_path / "m.onnx", tmp_path / "job.toml"
    model.write_bytes(b"model")
    given = ["--shares", "cpu:1,cpu:2", "--trials", "7", "--input", "x=1,8", "--exact", "--server", server.address]
    assert main(["tune", str(model), *given, "--write-job", str(path)]) == 0
    assert server.specs == []
    assert main(["tune", "--job", str(path), "--detach"]) == 0
    assert "jobs/j1" in capsys.readouterr().out
    (spec,) = server.specs
    assert (list(spec.shares), spec.trials, spec.exact) == (["cpu:1", "cpu:2"], 7, True)
    assert list(spec.inputs["x"].dims) == [1, 8]
    assert main(["tune", str(model), *given, "--write-job", str(path)]) == 2
    assert "the file exists" in capsys.readouterr().err


def test_an_unknown_option_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file(tmp_path, "trails = 3\n[[models]]\nfile = 'a.onnx'")
    assert main(["tune", "--job", str(path)]) == 2
    assert "--trails" in capsys.readouterr().err


def test_a_job_in_a_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file(tmp_path, "job = 'other.toml'\n[[models]]\nfile = 'a.onnx'\nshares = 'cpu:1'")
    assert main(["tune", "--job", str(path)]) == 2
    assert "names no other" in capsys.readouterr().err
