"""`fractune admin` on a state folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fractune.cli import main
from fractune_server.store.store import Store, sqlite_url
from tests.support.samples import validation


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


def test_what_cannot_be_done_is_one_line(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "backup", str(tmp_path / "none" / "b.tar"), "--state", str(tmp_path / "empty")]) == 7
    assert main(["admin", "restore", str(tmp_path / "no.tar"), "--state", str(state)]) == 7
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("fractune: ") for line in lines] == [True, True]
