"""A measurer's audit file on disk."""

import os
from pathlib import Path

import pytest

from benchmarks.chaos.audit import Audit
from fractune_core.errors import StateUnusable
from fractune_workers.measuring.audit import AUDIT_VARIABLE, AuditFile, audit_file
from tests.support.samples import validation


def read(path: Path) -> Audit:
    audit = Audit()
    audit.read(path.read_text().splitlines())
    return audit


def test_lines_are_on_disk_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AuditFile(tmp_path / "audit", "m/1")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    file.measured([validation("a", 1, 0.5), validation("b", 1, 0.5)])
    assert file.path == tmp_path / "audit" / "m%2F1.jsonl"
    assert synced == [file.path.stat().st_size]
    file.delivered([validation("a", 1, 0.5)])
    file.close()
    found = read(file.path)
    assert (set(found.statements), found.delivered) == ({"a@1", "b@1"}, {"a@1"})


def test_what_a_killed_worker_of_this_name_left_is_kept_and_its_torn_line_ended(tmp_path: Path) -> None:
    first = AuditFile(tmp_path, "m")
    first.measured([validation("a", 1, 0.5)])
    first._file.write(b'{"event": "measu')
    first.close()
    again = AuditFile(tmp_path, "m")
    again.measured([validation("b", 1, 0.5)])
    again.close()
    found = read(again.path)
    assert (set(found.statements), found.torn) == ({"a@1", "b@1"}, 1)


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnusable, match=r"audit file .*; free some space there, or name another folder by FRACT"):
        AuditFile(tmp_path / "file" / "audit", "m")


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, "m")
    file._file.close()
    file._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
    with pytest.raises(StateUnusable, match="No space left on device"):
        file.measured([validation("a", 1, 0.5)])
    file.close()


def test_none_is_kept_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUDIT_VARIABLE, raising=False)
    assert audit_file("m") is None
    monkeypatch.setenv(AUDIT_VARIABLE, str(tmp_path))
    found = audit_file("m")
    assert found is not None
    found.close()
