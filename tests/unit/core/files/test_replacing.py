"""A file that appears whole, also if several threads replace it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fractune_core.errors import StateUnusable
from fractune_core.files.replacing import check_folder, replacing_file


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


def test_a_folder_that_takes_no_file_is_told_before(tmp_path: Path) -> None:
    check_folder(tmp_path / "file")
    assert not list(tmp_path.iterdir())
    with pytest.raises(StateUnusable, match=r"missing/file: cannot be written .* check the folder"):
        check_folder(tmp_path / "missing" / "file")
