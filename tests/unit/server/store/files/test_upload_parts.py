"""Parts of uploads: whose they are, how long they stay, and how several uploads of one file get along."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from fractune_core.errors import BadRequest, StateUnusable
from fractune_server.store.blob_files import UploadParts

FILE = bytes(range(256)) * 40
SHA256 = hashlib.sha256(FILE).hexdigest()
SIZE = len(FILE)


def leave(parts: UploadParts, owner: str, name: str, size: int, age_s: float = 0.0) -> None:
    """A part of `size` bytes that was left alone for `age_s`."""
    with parts.open(owner, name, offset=0, size=size) as part:
        part.write(b"x" * size)
    os.utime(parts._folder / f"{owner}.{name}", (time.time() - age_s,) * 2)


def test_a_part_is_its_senders_alone_and_outlives_the_server(tmp_path: Path) -> None:
    leave(UploadParts(tmp_path), "a", SHA256, 100)
    parts = UploadParts(tmp_path)
    assert (parts.received("a", SHA256), parts.received("b", SHA256), parts.received("", SHA256)) == (100, 0, 0)
    assert (parts.kept("a"), parts.kept("b")) == ({SHA256: 100}, {})


def test_a_part_that_goes_on_becomes_the_file(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path / "parts")
    for start in range(0, SIZE, 5000):
        with parts.open("a", SHA256, offset=start, size=SIZE) as part:
            assert part.write(FILE[start : start + 5000])
            if start + 5000 >= SIZE:
                part.finish(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == FILE
    assert parts.kept("a") == {}


def test_who_begins_again_leaves_nothing_of_before(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path)
    leave(parts, "a", SHA256, 500)
    with parts.open("a", SHA256, offset=0, size=SIZE) as part:
        part.write(FILE[:10])
    assert parts.received("a", SHA256) == 10


def test_old_parts_go_and_new_ones_stay(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path, kept_s=100)
    leave(parts, "a", "1", 10, age_s=101)
    leave(parts, "a", "2", 10, age_s=90)
    parts.drop_old()
    assert parts.kept("a") == {"2": 10}


def test_in_a_full_folder_the_parts_left_alone_for_longest_go_first(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path, kept_bytes=100)
    for number, age_s in (("1", 30), ("2", 20), ("3", 10)):
        leave(parts, "a", number, 30, age_s=age_s)
    with parts.open("b", "4", offset=0, size=40):
        assert parts.kept("a") == {"2": 30, "3": 30}
    with parts.open("a", "2", offset=30, size=100):  # its own part is never in its way
        assert parts.kept("a") == {"2": 30}


def test_two_uploads_of_one_file_both_end_well(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path / "parts")
    with (
        parts.open("a", SHA256, offset=0, size=SIZE) as dead,
        parts.open("a", SHA256, offset=0, size=SIZE) as first,
    ):
        dead.write(FILE[:300])
        with parts.open("a", SHA256, offset=300, size=SIZE) as second:
            dead.write(FILE[300:400])
            assert second.write(FILE[300:])
            second.finish(tmp_path / "file")
        assert not first.write(FILE[:100])
        assert not dead.write(b"?" * 100)
        first.finish(tmp_path / "file")
        with parts.open("a", SHA256, offset=0, size=SIZE) as later:
            assert later.write(b"new")
    assert (tmp_path / "file").read_bytes() == FILE


def test_a_wrong_file_is_thrown_away_for_all_who_send_it(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path / "parts")
    with (
        parts.open("a", SHA256, offset=0, size=SIZE) as first,
        parts.open("a", SHA256, offset=0, size=SIZE) as second,
    ):
        second.write(FILE[:-1] + b"?")
        with pytest.raises(BadRequest, match=f"not {SHA256}; all of them were thrown away"):
            second.finish(tmp_path / "file")
        with pytest.raises(BadRequest, match="thrown away"):
            first.write(FILE)
    assert parts.kept("a") == {}
    assert not (tmp_path / "file").exists()


def test_a_part_that_is_no_longer_there_is_not_gone_on_with(tmp_path: Path) -> None:
    with (
        pytest.raises(BadRequest, match="resumes at byte 5, and 0 have arrived"),
        UploadParts(tmp_path).open("a", SHA256, offset=5, size=SIZE),
    ):
        pass


def test_what_a_full_disk_holds_of_an_upload_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = UploadParts(tmp_path)
    with parts.open("a", SHA256, offset=0, size=SIZE) as part:
        part.write(FILE[:100])

        def full(*_: object) -> int:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StateUnusable, match="No space left on device; free some space"):
            part.write(FILE[100:])
    assert parts.kept("a") == {}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateUnusable, match="parts: Not a directory"):
        UploadParts(tmp_path / "file" / "parts")
