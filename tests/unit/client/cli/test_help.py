"""What `--help` lists, the examples in it, and the completion by a shell."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from fractune.cli import build_app, main
from fractune.cli.command_list import COMMANDS


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
    name: str, whole_app: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
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
