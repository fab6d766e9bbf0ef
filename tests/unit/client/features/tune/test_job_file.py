from __future__ import annotations

import tomllib
from datetime import datetime
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.features.tune.job_file import Hours, expanded, read_job, written
from fractune_core.errors import BadRequest
from tests.support.processes.scripted_server import ScriptedServer

MODELS = ("a.onnx", "deep/b.onnx", "-m.onnx")
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
    (folder / "deep").mkdir(exist_ok=True)
    for name in MODELS:
        (folder / name).write_bytes(b"model")
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_model_is_a_command_line(tmp_path: Path) -> None:
    path = job_file(tmp_path, TWO)
    assert list(expanded(["tune", "--quiet", "--job", str(path)])) == [
        ["tune", str(tmp_path / "a.onnx"), "--shares=cpu:1,cpu:2", "--trials=8", "--quiet"],
        [
            *("tune", str(tmp_path / "deep" / "b.onnx"), "--shares=cpu:1,cpu:2", "--trials=4"),
            *("--input=x=1,8", "--input=y=1", "--exact", "--quiet"),
        ],
    ]


def test_an_option_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    path = job_file(tmp_path, "out = 'here'\ninput = ['x=1', 'y=2']\n[[models]]\nfile = 'a.onnx'")
    (line,) = expanded(["tune", "--job", str(path), "--input=x=3", "-o", "there"])
    assert line == ["tune", str(tmp_path / "a.onnx"), "--input=x=3", "-o", "there"]


def test_paths_are_relative_to_the_file_and_no_name_is_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_file(tmp_path, "out = 'b/'\nsample = '/s.txt'\n[[models]]\nfile = '-m.onnx'")
    monkeypatch.chdir(tmp_path)
    assert list(expanded(["tune", "--job", "job.toml"])) == [["tune", "./-m.onnx", "--out=b", "--sample=/s.txt"]]
    monkeypatch.chdir("/")
    (line,) = expanded(["tune", "--job", str(tmp_path / "job.toml")])
    assert line == ["tune", str(tmp_path / "-m.onnx"), f"--out={tmp_path / 'b'}", "--sample=/s.txt"]


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
        ("[[models]]\nfile = 'gone.onnx'", r"models\[0\]: .*gone.onnx: no such file"),
        ("[[models]]\nshares = 'cpu:1'", r"models\[0\] has no file"),
        ("[[models]]\nfile = 'a.onnx'\ninput = {x = 1}", "input is a dict; write a text"),
        ("[hours]\nbegin = '25:00'\nend = '6:00'\n[[models]]\nfile = 'a.onnx'", "begin is '25:00'"),
        ("[hours]\nbegin = '6:00'\nend = '06:00'\n[[models]]\nfile = 'a.onnx'", "begin and end at the same time"),
        ("[hours]\nfrom = '6:00'\n[[models]]\nfile = 'a.onnx'", "unknown key 'from'"),
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


def test_a_written_file_keeps_names_and_numbers(tmp_path: Path) -> None:
    """A link in a model cache has the model's name, and its target has none."""
    (tmp_path / "blob").write_bytes(b"model")
    (tmp_path / "m \x7f \U0001f600.onnx").symlink_to("blob")
    options = {"minutes": float("inf"), "out": str(tmp_path / "b.fractune"), "state": "/s", "input": ["x=1"]}
    text = written(tmp_path / "m \x7f \U0001f600.onnx", options, tmp_path)
    (table,) = tomllib.loads(text)["models"]
    assert table == {"file": "m \x7f \U0001f600.onnx", **options, "out": "b.fractune"}


@pytest.mark.parametrize(
    ("file", "options", "says"),
    [
        ("m.onnx", {"webhook": "https://me:secret@host/"}, "its password would stand in the file"),
        ("m\udcff.onnx", {}, "characters that a TOML file cannot hold"),
    ],
)
def test_what_no_file_should_hold_is_refused(tmp_path: Path, file: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        written(tmp_path / file, options, tmp_path)


@pytest.mark.parametrize("place", ["missing/job.toml", "link.toml"])
def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "link.toml").symlink_to(tmp_path / "elsewhere.toml")
    assert main(["tune", "m.onnx", "--shares", "cpu:1", "--write-job", str(tmp_path / place)]) == 2
    assert capsys.readouterr().err.startswith(f"fractune: --write-job {tmp_path / place}: ")
    assert not (tmp_path / "elsewhere.toml").exists()


def test_a_model_that_fails_does_not_end_those_after_it(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job_file(tmp_path, "[[models]]\nfile = 'a.onnx'\nshares = 'cpu:x'\n[[models]]\nfile = 'deep/b.onnx'")
    given = ["--server", server.address, "--detach"]
    path.write_text(path.read_text(encoding="utf-8") + "\nshares = 'cpu:1'\n", encoding="utf-8")
    assert main(["tune", "--job", str(path), *given]) == 2
    said = capsys.readouterr()
    assert "cpu:x" in said.err
    assert "jobs/j1" in said.out


def test_an_unknown_option_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file(tmp_path, "trails = 3\n[[models]]\nfile = 'a.onnx'")
    assert main(["tune", "--job", str(path)]) == 2
    assert "--trails" in capsys.readouterr().err


def test_a_job_in_a_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file(tmp_path, "job = 'other.toml'\n[[models]]\nfile = 'a.onnx'\nshares = 'cpu:1'")
    assert main(["tune", "--job", str(path)]) == 2
    assert "names no other" in capsys.readouterr().err
