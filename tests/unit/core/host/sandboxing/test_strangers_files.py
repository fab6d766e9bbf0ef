"""Of what another process has left only a file of its own is read, and nothing outside is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fractune_core.host.sandboxing.strangers_files import copy_strangers_file, empty_dir


def test_a_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    copy_strangers_file(tmp_path / "file", tmp_path / "copy", 5)
    assert (tmp_path / "copy").read_bytes() == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        copy_strangers_file(tmp_path / "file", tmp_path / "copy", 4)
    assert not (tmp_path / "copy").exists()


def test_what_is_no_file_of_its_own_is_not_read(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.write_text("a secret")
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "hard").hardlink_to(secret)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    for name in ("link", "hard", "pipe", "folder", "none"):
        with pytest.raises(OSError, match=r"links|of its own|directory|No such file"):
            copy_strangers_file(folder / name, tmp_path / "copy", 100)


def test_a_folder_is_emptied_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "folder"
    for each in (other, folder, folder / "inner"):
        each.mkdir()
    (other / "file").touch()
    (folder / "link").symlink_to(other)
    (folder / "inner/link").symlink_to(other)
    os.mkfifo(folder / "pipe")
    empty_dir(folder)
    assert not list(folder.iterdir())
    assert (other / "file").exists()


def test_folders_that_are_nested_too_deeply_are_removed(tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1100):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(before)
    empty_dir(tmp_path)
    assert not list(tmp_path.iterdir())
