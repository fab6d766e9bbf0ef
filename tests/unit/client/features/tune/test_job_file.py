import json
import subprocess
import sys
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from fractune.cli import build_app, main
from fractune.features.tune.job_file import PATHS, Hours, expanded, read_job, written
from fractune.server.credentials import Credentials
from fractune_core.errors import BadModel, BadRequest, StateUnusable
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
    (folder / "deep").mkdir(exist_ok=True)
    for name in ("a.onnx", "deep/b.onnx"):
        (folder / name).write_bytes(b"model")
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def command_lines(*args: str) -> list[list[str]]:
    return [list(each.args) for each in expanded(args)]


def test_each_model_is_a_command_line_and_other_options_come_last(tmp_path: Path) -> None:
    path = job_file(tmp_path, TWO)
    assert command_lines("tune", "--quiet", "--job", str(path), "--trials", "2") == [
        ["tune", str(tmp_path / "a.onnx"), "--shares", "cpu:1,cpu:2", "--quiet", "--trials", "2"],
        [
            *("tune", str(tmp_path / "deep" / "b.onnx"), "--shares", "cpu:1,cpu:2"),
            *("--input", "x=1,8", "--input", "y=1", "--exact", "--quiet", "--trials", "2"),
        ],
    ]


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("input", ["--input", "x=1,2"]),
        ("input", ["--input=x=1,2"]),
        ("lengths", ["--lengths", "x:1=16"]),
        ("pad", ["--pad", "x=1"]),
        ("out", ["-o", "b.fractune"]),
    ],
)
def test_lists_on_the_command_line_replace_those_of_the_file(tmp_path: Path, key: str, given: list[str]) -> None:
    path = job_file(tmp_path, f"{key} = ['a', 'b']\n[[models]]\nfile = 'a.onnx'\n{key} = ['c']")
    assert command_lines("tune", "--job", str(path), *given) == [["tune", str(tmp_path / "a.onnx"), *given]]


def test_a_model_that_is_not_there_is_named_before_the_first_is_tuned(tmp_path: Path) -> None:
    path = job_file(tmp_path, "[[models]]\nfile = 'a.onnx'\n[[models]]\nfile = 'gone.onnx'")
    with pytest.raises(BadRequest, match=r"gone\.onnx: no such file; models are relative to job\.toml"):
        expanded(["tune", "--job", str(path)])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("trails = 4", "No such option: --trails"),
        ("minutes = 'many'", "'many' is not a number. Try 'fractune tune --help'."),
    ],
)
def test_a_wrong_option_of_a_model_is_named_before_the_first_is_tuned(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str], wrong: str, says: str
) -> None:
    path = job_file(tmp_path, f"{TWO}\n{wrong}")
    assert main(["tune", "--job", str(path), "--server", server.address, "--detach"]) == BadRequest.exit_code
    assert server.specs == []
    error = capsys.readouterr().err
    assert f"fractune: {path}: {tmp_path / 'deep' / 'b.onnx'}: " in error
    assert says in error


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    paths = {"out": "a.fractune", "picture": "b.svg", "sample": "/c.txt", "state": "~/state", "token-file": "d"}
    text = "".join(f"{name} = '{path}'\n" for name, path in paths.items())
    ((_, *words),) = read_job(job_file(tmp_path, f"{text}[[models]]\nfile = 'm.onnx'"))[0]
    assert words == [
        *("--out", str(tmp_path / "a.fractune"), "--picture", str(tmp_path / "b.svg"), "--sample", "/c.txt"),
        *("--state", "~/state", "--token-file", str(tmp_path / "d")),
    ]


def test_every_path_of_the_command_is_known() -> None:
    app: Any = typer.main.get_command(build_app("tune"))
    parameters = app.commands["tune"].params
    paths = {each.opts[0].removeprefix("--") for each in parameters if each.type_descriptor.annotation is Path}
    assert paths - {"model", "job", "write-job"} == PATHS


@pytest.mark.parametrize("args", [[], ["tune", "m.onnx"], ["run", "--job", "x"]])
def test_other_command_lines_are_themselves(args: list[str]) -> None:
    assert command_lines(*args) == [args]


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


def test_a_written_file_names_the_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "5ad3").write_bytes(b"model")
    link = tmp_path / "cache" / "resnet50.onnx"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "blobs" / "5ad3")
    assert read_job(job_file(tmp_path, written(link, {}, tmp_path)))[0] == [[str(link)]]
    assert read_job(job_file(tmp_path, written(link, {}, tmp_path / "blobs")))[0] == [[str(link)]]


def test_a_written_file_has_no_options_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = tmp_path / "m.onnx", tmp_path / "job.toml"
    model.write_bytes(b"model")
    given = ["--shares", "cpu:1", "--detach", "--quiet", "--json", "--write-job", str(path)]
    assert main(["tune", str(model), *given]) == 0
    assert tomllib.loads(path.read_text(encoding="utf-8"))["models"] == [{"file": "m.onnx", "shares": "cpu:1"}]
    printed = capsys.readouterr().out
    assert f"'fractune tune --job {path} --detach --quiet --json' runs it" in printed
    assert "options of one run are not in the file" in printed


def test_no_file_is_written_for_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.toml"
    assert main(["tune", "gone.onnx", "--shares", "cpu:1", "--write-job", str(path)]) == BadModel.exit_code
    assert "gone.onnx: no such model file" in capsys.readouterr().err
    assert not path.exists()


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk."""
    text = "x" * 4096
    script = (
        "import resource, signal; from pathlib import Path; from fractune.text.output_files import write_new;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024));"
        f"write_new('--write-job', Path('job.toml'), {text!r})"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "--write-job job.toml: cannot write it (File too large); name another file" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_credentials_of_a_model_are_not_those_of_the_next(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Credentials] = []

    def channel(credentials: Credentials, *_: object) -> None:
        found.append(credentials)
        raise BadRequest("enough")

    monkeypatch.setattr(Credentials, "channel", channel)
    monkeypatch.setenv("FRACTUNE_CA", "/outer.pem")
    path = job_file(
        tmp_path,
        f"shares = 'cpu:1'\nserver = '{server.address}'\n"
        "[[models]]\nfile = 'a.onnx'\ntoken-file = '/a.token'\nca = '/a.pem'\n[[models]]\nfile = 'deep/b.onnx'",
    )
    assert main(["tune", "--job", str(path), "--detach"]) == BadRequest.exit_code
    assert [(each.token_file, each.ca) for each in found] == [
        (Path("/a.token"), Path("/a.pem")),
        (None, Path("/outer.pem")),
    ]


def test_each_model_that_begins_is_an_event(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job_file(tmp_path, TWO)
    assert main(["tune", "--job", str(path), "--server", server.address, "--detach", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    events = [json.loads(line) for line in said.out.splitlines()]
    assert [each["event"] for each in events] == ["model", "detached", "model", "detached"]
    assert events[2] == {
        "event": "model",
        "job_file": str(path),
        "file": str(tmp_path / "deep" / "b.onnx"),
        "number": 2,
        "models": 2,
    }


def test_a_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, missing, link = tmp_path / "m.onnx", tmp_path / "missing" / "job.toml", tmp_path / "link.toml"
    model.write_bytes(b"model")
    link.symlink_to(tmp_path / "target.toml")
    assert main(["tune", str(model), "--shares", "cpu:1", "--write-job", str(missing)]) == StateUnusable.exit_code
    assert f"--write-job {missing}: cannot write it (No such file or directory)" in capsys.readouterr().err
    assert main(["tune", str(model), "--shares", "cpu:1", "--write-job", str(link)]) == BadRequest.exit_code
    assert f"--write-job {link}: the file exists" in capsys.readouterr().err
    assert not (tmp_path / "target.toml").exists()


def test_written_paths_are_relative_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(b"model")
    given = ["--shares", "cpu:1", "--out-dir", "jobs/out", "--picture", "p.svg", "--state", "~/state"]
    (tmp_path / "jobs").mkdir()
    assert main(["tune", "m.onnx", *given, "--write-job", "jobs/job.toml"]) == 0
    assert "jobs/job.toml" in capsys.readouterr().out
    text = (tmp_path / "jobs" / "job.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)["models"][0]
    assert {name: table[name] for name in ("out-dir", "picture", "state")} == {
        "out-dir": "out",
        "picture": str(tmp_path / "p.svg"),
        "state": "~/state",
    }


def test_a_written_file_is_toml(tmp_path: Path) -> None:
    text = written(tmp_path / "\U0001f600\x7f.onnx", {"minutes": float("inf"), "input": ['"=1']}, tmp_path)
    assert read_job(job_file(tmp_path, text))[0] == [
        [str(tmp_path / "\U0001f600\x7f.onnx"), "--minutes", "inf", "--input", '"=1']
    ]


def test_a_written_file_finds_its_model_from_a_linked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "jobs").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "real" / "jobs")
    (tmp_path / "real" / "m.onnx").write_bytes(b"model")
    monkeypatch.chdir(tmp_path)
    model = Path("linked/../m.onnx")
    ((found,),) = read_job(job_file(tmp_path / "linked", written(model, {}, Path("linked"))))[0]
    assert Path(found).read_bytes() == b"model"


def test_names_and_values_may_begin_with_a_dash(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-m.onnx").write_bytes(b"model")
    job_file(Path(), f"shares = 'cpu:1'\nonly = '-x'\nserver = '{server.address}'\n[[models]]\nfile = '-m.onnx'")
    assert main(["tune", "--job", "job.toml", "--detach"]) == 0
    assert [spec.only for spec in server.specs] == ["-x"]


def test_a_model_that_fails_does_not_end_those_after_it(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    models = "[[models]]\nfile = 'a.onnx'\nshares = 'cpu:x'\n[[models]]\nfile = 'deep/b.onnx'\nshares = 'cpu:1'"
    path = job_file(tmp_path, models)
    assert main(["tune", "--job", str(path), "--server", server.address, "--detach"]) == 2
    said = capsys.readouterr()
    first, second = (tmp_path / name for name in ("a.onnx", "deep/b.onnx"))
    begins, failed, next_begins = said.err.splitlines()
    assert begins == f"{first} begins, 1 of 2 in {path}"
    assert failed.startswith(f"fractune: {path}: {first}: ")
    assert "cpu:x" in failed
    assert next_begins == f"{second} begins, 2 of 2 in {path}"
    assert "jobs/j1" in said.out


def test_a_job_in_a_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_file(tmp_path, "job = 'other.toml'\n[[models]]\nfile = 'a.onnx'\nshares = 'cpu:1'")
    assert main(["tune", "--job", str(path)]) == 2
    assert "names no other" in capsys.readouterr().err


def test_a_fault_of_our_own_before_the_first_model_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> list[list[str]]:
        raise RuntimeError("no words")

    monkeypatch.setattr("fractune.cli.expanded", broken)
    assert main(["tune", "--job", "job.toml"]) == 1
    assert capsys.readouterr().err.startswith(
        "fractune: unexpected error: RuntimeError: no words; set FRACTUNE_DEBUG=1"
    )
