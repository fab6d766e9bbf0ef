"""How a command fails: one line and a documented exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fractune.cli import main
from fractune_core.errors import ServerUnreachable, error_kinds
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer


def test_every_error_has_its_exit_code(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in error_kinds().values():
        server.fail_with = kind("what is wrong\nand what to do")
        assert main(["workers", "--server", server.address]) == kind.exit_code
        assert "what is wrong and what to do" in only_line(capsys.readouterr().err)


def test_a_package_that_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.cli.commands.jobs.jobs.session", lambda *_, **__: import_module("nowhere"))
    assert main(["jobs"]) == 1
    assert only_line(capsys.readouterr().err) == (
        "fractune: this part needs nowhere, which is not installed; 'fractune doctor' says what to install"
    )


def test_an_unexpected_error_is_one_line_with_the_way_to_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.cli.commands.jobs.jobs.session", None)  # a bug: calling it is a TypeError
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


def test_trials_and_extra_trials_are_named_as_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    command = ["tune", str(tmp_path / "m.onnx"), "--shares", "cpu:1", "--trials", "5", "--extra-trials", "4"]
    assert main(command) == 2
    wrong = "--trials is 5, which includes the log, and --extra-trials is 4, beyond the log; give one of them"
    assert only_line(capsys.readouterr().err).endswith(wrong)
