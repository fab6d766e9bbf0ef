"""Former names of options: each still works, and neither the help nor the completion shows one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from fractune.cli import build_app, main
from fractune.cli.old_options import NEW_NAMES

VALUES = {"--compare": "onnxruntime", "--extra-trials": "3", "--lock-dir": "locks", "--min-gain": "5%"}
"""other options take a text, or nothing"""


def commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group, by its words after `fractune`."""
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, *words, name)
        else:
            yield " ".join((*words, name)), each


def aliases() -> Iterator[Any]:
    for name, command in commands(typer.main.get_command(build_app(""))):
        options = {opt: param for param in command.params for opt in param.opts}
        for old, new in NEW_NAMES.items():
            if new in options and old not in options:
                yield pytest.param(command, old, new, options[new], id=f"{name} {old}")


ALIASES = list(aliases())


def test_every_former_name_is_an_alias_somewhere() -> None:
    assert {each.values[1] for each in ALIASES} == NEW_NAMES.keys()


@pytest.mark.parametrize(("command", "old", "new", "option"), ALIASES)
def test_the_former_name_means_the_same_and_is_not_shown(command: Any, old: str, new: str, option: Any) -> None:
    value = [] if option.is_flag else [VALUES.get(new, "x")]
    by_old, by_new = (command.make_context("command", [name, *value], resilient_parsing=True) for name in (old, new))
    assert by_old.params == by_new.params
    assert by_new.params[option.name]
    assert not by_new.args
    shown = [*command.get_help(by_new).split(), *(each.value for each in command.shell_complete(by_new, "--"))]
    assert new in shown
    assert old not in shown


@pytest.mark.parametrize("namespace", [["--namespace=b"], ["--namespace", "b"]])
def test_an_option_by_both_names_is_refused(namespace: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "show", "--scope", "a", *namespace]) == 2
    assert "--scope is the former name of --namespace; give --namespace alone" in capsys.readouterr().err


def test_every_command_with_out_has_its_letter() -> None:
    for name, command in commands(typer.main.get_command(build_app(""))):
        assert all("-o" in param.opts for param in command.params if "--out" in param.opts), name
