"""`fractune server`, `worker` and `up`, access lists of Redis, and the administrator's commands."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from fractune.cli import main
from fractune_core.fleet.options import WorkerOptions
from fractune_core.fleet.redis_users import USERS
from fractune_server.store.store import Store, sqlite_url
from tests.support.samples import validation


def test_the_users_are_written_with_a_password_file_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "secrets"
    assert main(["admin", "redis-acl", str(folder)]) == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    said = capsys.readouterr().out
    rules = (folder / "users.acl").read_text()
    for user in USERS:
        file = folder / f"{user}.password"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        password = file.read_text().strip()
        assert len(password) == 64
        assert password not in said + rules
        assert f"user {user} on #{hashlib.sha256(password.encode()).hexdigest()} " in rules
    assert {path.name for path in folder.iterdir()} == {"users.acl", *(f"{user}.password" for user in USERS)}


def test_run_again_it_keeps_passwords_and_renews_rules(tmp_path: Path) -> None:
    assert main(["admin", "redis-acl", str(tmp_path)]) == 0
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    (tmp_path / "users.acl").write_text("user measure on nopass ~* +@all\n")
    (tmp_path / "build.password").unlink()
    assert main(["admin", "redis-acl", str(tmp_path)]) == 0
    after = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"build.password", "users.acl"}
    assert "nopass" not in after["users.acl"]


def test_a_folder_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["admin", "redis-acl", str(tmp_path / "file")]) == 7
    assert capsys.readouterr().err.startswith(f"fractune: cannot write the users of Redis to {tmp_path / 'file'}: ")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses of Redis that server and workers were started with."""
    found: list[Any] = []
    monkeypatch.setenv("FRACTUNE_SECRET", "secret")
    monkeypatch.setattr(
        "fractune.cli.commands.fleet.launch.run_server", lambda options: found.append(options.redis_url)
    )
    monkeypatch.setattr(
        "fractune.cli.commands.fleet.launch.run_worker", lambda options: found.append(options.redis_url)
    )
    return found


@pytest.mark.parametrize("command", [["server"], ["worker", "--role", "build"]])
def test_the_password_comes_from_a_file(command: list[str], started: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("a:b@c\n")
    assert main([*command, "--redis", "redis://build@host:1/0", "--redis-password-file", str(file)]) == 0
    assert started == ["redis://build:a%3Ab%40c@host:1/0"]


@pytest.mark.parametrize(
    ("url", "content", "says"),
    [
        ("redis://u@h", None, "cannot read --redis-password-file"),
        ("redis://u@h", b" \n", "is empty; write the password"),
        ("redis://u@h", b"\xff\xfe", "it is not text"),
        ("redis://u:first@h", b"second", "redis://u:***@h has a password, and so has the password file"),
    ],
)
def test_a_password_file_that_cannot_be_used(
    url: str, content: bytes | None, says: str, started: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    assert main(["server", "--redis", url, "--redis-password-file", str(file)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "first" not in error
    assert "second" not in error
    assert started == []


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    store = Store(sqlite_url(tmp_path / "state"))
    store.log.add([validation("a", 1, 1.0)])
    store.close()
    return tmp_path / "state"


def test_backup_and_restore_say_what_they_hold(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "backup.tar"
    assert main(["admin", "backup", str(file), "--state", str(state)]) == 0
    assert capsys.readouterr().out.startswith("backed up 1 records, 0 jobs, 0 models and bundles (0.")
    assert main(["admin", "backup", str(file), "--state", str(state)]) == 2
    assert f"{file} exists; pass --force" in capsys.readouterr().err
    assert main(["admin", "backup", str(file), "--state", str(state), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 1
    assert main(["admin", "restore", str(file), "--state", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.endswith(f"to {tmp_path / 'new'}\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--role", "measure"], "needs a share"),
        (["--role", "build", "--share", "cpu:1"], "--share cpu:1: only a measure worker has a share"),
        (["--role", "build", "--margin", "2"], "--margin 2.0: only a measure worker races"),
        (["--role", "compile", "--max-model-memory", "lots"], "--max-model-memory 'lots': write a size"),
        (["--role", "compile", "--max-model-memory", "512MiB"], "--max-model-memory '512MiB': TVM alone takes"),
        (["--role", "measure", "--share", "cpu:1", "--margin", "0.5"], "--margin 0.5: it is a factor"),
        (["--role", "measure", "--share", "cpu:1", "--cache", "cold"], "--cache cold: only a measure worker with"),
        (["--role", "build", "--cache", "cold"], "--cache cold: only a measure worker with a share of a GPU"),
        (["--role", "measure", "--share", "gpu:1"], "unknown mechanism 'gpu'"),
        (["--role", "paint"], "'paint' is not one of"),
    ],
)
def test_options_that_do_not_fit_the_role(
    options: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRACTUNE_SECRET", "s")
    monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_worker", lambda *_, **__: pytest.fail("started"))
    assert main(["worker", "--redis", "unix:///nowhere", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.fixture
def started_workers(monkeypatch: pytest.MonkeyPatch) -> list[WorkerOptions]:
    """The options of every worker that the command would have become."""
    options: list[WorkerOptions] = []
    monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_worker", options.append)
    monkeypatch.setenv("FRACTUNE_SECRET", "s")
    return options


def test_the_environment_may_name_redis(monkeypatch: pytest.MonkeyPatch, started_workers: list[WorkerOptions]) -> None:
    monkeypatch.setenv("FRACTUNE_REDIS", "unix:///from/the/environment")
    assert main(["worker", "--role", "build"]) == 0
    assert main(["worker", "--role", "build", "--redis", "unix:///typed"]) == 0
    assert [options.redis_url for options in started_workers] == ["unix:///from/the/environment", "unix:///typed"]
