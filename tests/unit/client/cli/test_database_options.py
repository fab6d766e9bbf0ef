"""`--database` and its password file, of `fractune server` and `fractune admin token`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fractune.cli import main

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


COMMANDS = [["server", "--redis", "redis://host:1/0"], ["admin", "token", "list"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_password_comes_from_a_file(command: list[str], file: Path, opened: list[Any]) -> None:
    assert main([*command, "--database", URL, "--database-password-file", str(file)]) == 0
    assert main([*command, "--database", URL]) == 0
    assert main(command) == 0
    assert opened == [URL.replace("fractune@", "fractune:a%3Ab%40c@"), URL, None]


@pytest.mark.parametrize("command", COMMANDS)
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


@pytest.mark.parametrize("command", COMMANDS)
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
    assert main([*COMMANDS[0], "--state", str(tmp_path)]) == 0, "a server has models in its folder all the same"
    assert opened == [None, URL]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_password_file_of_the_environment_that_is_not_there_is_named(
    command: list[str], opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRACTUNE_DATABASE", URL)
    monkeypatch.setenv("FRACTUNE_DATABASE_PASSWORD_FILE", "/nowhere")
    assert main(command) == 2
    assert "cannot read FRACTUNE_DATABASE_PASSWORD_FILE /nowhere" in capsys.readouterr().err
    assert opened == []
