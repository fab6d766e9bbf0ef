"""A file that appears whole, also if several threads replace it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fractune_core.errors import StateUnusable
from fractune_core.files.replacing import replacing_file


def replace_by(path: Path, content: bytes) -> None:
    with replacing_file(path) as file:
        file.write(content)


def test_two_threads_replace_a_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadPoolExecutor() as pool, replacing_file(path) as file:
        file.write(b"outer")
        pool.submit(replace_by, path, b"inner, and longer").result()
        assert path.read_bytes() == b"inner, and longer"
    assert path.read_bytes() == b"outer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_made_and_an_impossible_one_is_named(tmp_path: Path) -> None:
    replace_by(tmp_path / "new" / "folder" / "file", b"content")
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"content"
    with pytest.raises(StateUnusable, match=r"file/below: cannot be written \(Not a directory\); check the folder"):
        replace_by(tmp_path / "new" / "folder" / "file" / "below", b"")
