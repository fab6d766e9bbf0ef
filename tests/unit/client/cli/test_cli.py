"""How a command fails, what `--help` lists, and options and paths that are refused before the work."""

import json
import os
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from fractune.cli import build_app, main
from fractune.cli.group import COMMANDS
from fractune.comparing import padded_outputs
from fractune_core.errors import ServerUnreachable, StateUnusable, error_kinds
from tests.support.client_samples import bundle_bytes
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer
from tests.support.processes.server_process import model_bytes
from tests.support.real_bundle import ENCODER, ENCODER_SHAPES, MEAN_OF_ALL


def test_every_error_has_its_exit_code(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in error_kinds().values():
        server.fail_with = kind("what is wrong\nand what to do")
        assert main(["workers", "--server", server.address]) == kind.exit_code
        assert "what is wrong and what to do" in only_line(capsys.readouterr().err)


def test_a_package_that_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.cli.commands.jobs.session", lambda *_, **__: import_module("nowhere"))
    assert main(["jobs"]) == 1
    assert only_line(capsys.readouterr().err) == (
        "fractune: this part needs nowhere, which is not installed; 'fractune doctor' says what to install"
    )


def test_an_unexpected_error_is_one_line_with_the_way_to_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.cli.commands.jobs.session", None)  # a bug: calling it is a TypeError
    assert main(["jobs"]) == 1
    line = only_line(capsys.readouterr().err)
    assert "unexpected error: TypeError" in line
    assert "FRACTUNE_DEBUG=1" in line
    monkeypatch.setenv("FRACTUNE_DEBUG", "1")
    assert main(["jobs"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_while_the_command_is_still_loading_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """The first library that the command loads is one that interrupts it."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [sys.executable, "-m", "fractune", "jobs"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, env=env, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_a_library_that_aborts_while_the_interpreter_goes_down_changes_no_exit_code(tmp_path: Path) -> None:
    planted = "import os, sys\nsys.planted = type('Planted', (), {'__del__': lambda _, end=os.abort: end()})()\n"
    (tmp_path / "sitecustomize.py").write_text(planted)
    for module in ("fractune", "fractune.cli"):
        command = [sys.executable, "-m", module, "--version"]
        ended = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert ended.stdout.startswith(b"fractune ")


@pytest.mark.parametrize("args", [["jobs"], ["jobs", "--json"], ["--help"]])
def test_a_reader_that_went_away_is_code_141_whatever_was_writing(server: ScriptedServer, args: list[str]) -> None:
    """Tables come from one library, help from another, JSON from neither."""
    reader, writer = os.pipe()
    os.close(reader)
    at = [] if "--help" in args else ["--server", server.address]
    ended = subprocess.run(
        [sys.executable, "-m", "fractune.cli", *args, *at], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_so_it_is_where_errors_go_to_the_same_reader() -> None:
    """`fractune ... 2>&1 | head`: the line about an error finds no reader either, and its code stays."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "fractune.cli", "jobs", "--server", "127.0.0.1:1"]
    ended = subprocess.run(command, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert ended.returncode == ServerUnreachable.exit_code


def test_a_command_whose_output_is_closed_from_the_start_works() -> None:
    command = f"exec {sys.executable} -m fractune.cli --version >&-"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["worker", "--role", "paint"], "'--role': 'paint' is not one of 'compile', 'tune', 'build', 'measure'"),
        (["tune", "m", "--shares", "cpu:1", "--trials", "abc"], "'--trials': 'abc' is not a whole number"),
        (["tune", "m", "--shares", "cpu:1", "--minutes", "abc"], "'--minutes': 'abc' is not a number"),
        (["run", "m", "--repeats", "0"], "'--repeats': 0 is less than 3"),
        (["watch", "j1", "--reconnect-s", "1e9"], "'--reconnect-s': 1e9 is more than 86400.0"),
        (["run", "m", "--repeats", "9" * 5000], "'--repeats': Unable to parse"),
        (["run"], "Missing argument 'bundle'"),
    ],
)
def test_a_wrong_value_is_quoted_in_words_of_our_own(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    line = only_line(capsys.readouterr().err)
    assert says in line
    assert line.endswith(f". Try 'fractune {args[0]} --help'.")


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


@pytest.fixture(scope="module")
def whole_app() -> Any:
    return typer.main.get_command(build_app(""))


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_commands_stand_under_headings_with_whole_summaries(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([option]) == 0
    shown = capsys.readouterr().out
    headings = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Options", *dict.fromkeys(entry.heading for entry in COMMANDS.values())]
    assert shown.count("...") == 1  # of the usage
    assert max(map(len, shown.splitlines())) <= 80


def test_summaries_are_short_and_out_has_its_letter_in_every_command(whole_app: Any) -> None:
    groups = [whole_app]
    for group in groups:
        for command in group.commands.values():
            assert len(command.get_short_help_str(1000)) <= 72, command.name
            assert all("-o" in param.opts for param in command.params if "--out" in param.opts), command.name
            groups += [command] if hasattr(command, "commands") else []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_that_parses(
    name: str, whole_app: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    example = COMMANDS[name].example
    program, *words = shlex.split(example)
    command, called = whole_app, [program]
    while hasattr(command, "commands"):
        called.append(words.pop(0))
        command = command.commands[called[-1]]
    assert called[:2] == ["fractune", name]
    command.make_context(called[-1], words)
    assert main([name, "-h"]) == 0
    assert f"Example: {example}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("args", "command"),
    [(["tune"], "fractune tune"), (["log", "show", "--bad"], "fractune log show"), (["-x"], "fractune")],
)
def test_a_wrong_option_names_the_help_of_its_command(
    args: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    assert capsys.readouterr().err.endswith(f"Try '{command} --help'.\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"complete_{shell}" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "expected"), [("tu", "tune"), ("log exp", "export"), ("tune --share", "--shares")])
def test_a_shell_completes_commands_and_options(
    words: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FRACTUNE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fractune {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit, match=r"^0$"):
        main([])
    assert expected in capsys.readouterr().out.split()


def bundles(encoders: Path, model: str) -> list[str]:
    return [str(encoders / f"{model}-{batch}x{length}.fractune") for batch, length in ENCODER_SHAPES[model]]


def test_a_joined_bundle_is_described(encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.fractune"
    assert main(["join", *bundles(encoders, ENCODER), "-o", str(out), "--pad", "ids=1"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("out.fractune")
    assert lines[:3] == [
        "buckets:   ids 1x8, mask 1x8",
        "           ids 1x16, mask 1x16",
        "           ids 2x16, mask 2x16",
    ]
    assert lines[3].startswith("padding:   proved: inputs of batch 1 length 8, ")
    assert main(["join", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["bundle"], said["padding"]["proved"], len(said["buckets"])) == (str(out), True, 3)
    assert main(["bundle", "--verify", str(out)]) == 0
    assert main(["run", str(out), "--repeats", "3"]) == 0


def test_what_prevents_padding_is_told(
    encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.fractune"
    assert main(["join", *bundles(encoders, MEAN_OF_ALL), "-o", str(out)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("padding:   none, only these shapes run: the output 'mean' of inputs of length 8 differs by")
    monkeypatch.setattr(padded_outputs, "_KINDS", ("positive",))  # others differ by more than any accepted part
    assert main(["join", str(out), "--padding-error", "90%"]) == 0
    assert "proved: inputs of" in capsys.readouterr().out


def test_shapes_of_the_bundle_there_are_kept(
    encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.fractune"
    files = bundles(encoders, ENCODER)
    assert main(["join", *files, "-o", str(out)]) == 0
    whole = out.read_bytes()
    capsys.readouterr()
    assert main(["join", *files[1:], "-o", str(out)]) == 2
    assert (
        "out.fractune is a bundle, and the new one would be without the shape ids 1x8, mask 1x8"
        in capsys.readouterr().err
    )
    assert out.read_bytes() == whole
    assert main(["join", *files[1:], "-o", str(out), "--force"]) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pad", "ids"], "--pad 'ids': write NAME=NUMBER, such as input_ids=1"),
        (["--pad", "ids=nan"], "--pad 'ids=nan': write NAME=NUMBER"),
        (["--pad", "ids=1", "--pad", "ids=2"], "--pad 'ids=2': 'ids' has a number already; give one"),
        (["--padding-error", "x"], "--padding-error 'x': write a percentage such as 10%"),
        ([], "--out is missing; name the file of the joined bundle"),
    ],
)
def test_wrong_options_are_told(
    encoders: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert main(["join", *bundles(encoders, ENCODER), *options]) == 2
    assert says in capsys.readouterr().err


URL = "postgresql://fractune@db:5432/tuning"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses of databases that the commands went to."""
    found: list[Any] = []

    class Admin:
        def __init__(self, _state: Path, database_url: str | None) -> None:
            found.append(database_url)

        def list_tokens(self) -> list[Any]:
            return []

    monkeypatch.setenv("FRACTUNE_SECRET", "secret")
    monkeypatch.setattr(
        "fractune.cli.commands.fleet.launch.run_server", lambda options: found.append(options.database_url)
    )
    monkeypatch.setattr("fractune_server.admin.Admin", Admin)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("a:b@c\n")
    return file


WITH_DATABASE = [["server", "--redis", "redis://host:1/0"], ["admin", "token", "list"]]


@pytest.mark.parametrize("command", WITH_DATABASE)
def test_the_password_comes_from_a_file(command: list[str], file: Path, opened: list[Any]) -> None:
    assert main([*command, "--database", URL, "--database-password-file", str(file)]) == 0
    assert main([*command, "--database", URL]) == 0
    assert main(command) == 0
    assert opened == [URL.replace("fractune@", "fractune:a%3Ab%40c@"), URL, None]


@pytest.mark.parametrize("command", WITH_DATABASE)
def test_a_password_of_no_database_and_a_second_one_are_refused(
    command: list[str], file: Path, opened: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--database-password-file", str(file)]) == 2
    twice = ["--database", URL.replace("fractune@", "fractune:first@"), "--database-password-file", str(file)]
    assert main([*command, *twice]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("name the database by --database too")
    assert "postgresql://fractune:***@db:5432/tuning has a password, and so has the password file" in said[1]
    assert "first" not in said[1]
    assert opened == []


@pytest.mark.parametrize("command", WITH_DATABASE)
def test_the_environment_may_name_both(
    command: list[str], file: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRACTUNE_DATABASE", URL)
    monkeypatch.setenv("FRACTUNE_DATABASE_PASSWORD_FILE", str(file))
    assert main(command) == 0
    assert main([*command, "--database", "postgresql://other"]) == 0, "its password is not that of another database"
    assert opened == [URL.replace("fractune@", "fractune:a%3Ab%40c@"), "postgresql://other"]


def test_a_folder_that_is_named_goes_before_the_environment(
    tmp_path: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRACTUNE_DATABASE", URL)
    assert main(["admin", "token", "list", "--state", str(tmp_path)]) == 0
    assert main([*WITH_DATABASE[0], "--state", str(tmp_path)]) == 0, "a server has models in its folder all the same"
    assert opened == [None, URL]


@pytest.mark.parametrize("command", WITH_DATABASE)
def test_a_password_file_of_the_environment_that_is_not_there_is_named(
    command: list[str], opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRACTUNE_DATABASE", URL)
    monkeypatch.setenv("FRACTUNE_DATABASE_PASSWORD_FILE", "/nowhere")
    assert main(command) == 2
    assert "cannot read FRACTUNE_DATABASE_PASSWORD_FILE /nowhere" in capsys.readouterr().err
    assert opened == []
