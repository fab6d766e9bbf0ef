"""Folders that a user's processes share, beside what strangers put in their way."""

import os
import stat
from pathlib import Path

import pytest

from fractune_core import cuda
from fractune_core.errors import StateUnusable
from fractune_core.host.private_folders import is_private, make_private, open_plain, private_path
from fractune_workers import scratch_dir
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.locks.flock import is_locked


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "a")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert not is_private(folder)
    assert stat.S_IMODE(make_private(folder).stat().st_mode) == 0o700


def test_a_link_a_file_and_another_users_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aim = tmp_path / "aim"
    aim.mkdir()
    (tmp_path / "link").symlink_to(aim)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(StateUnusable):
            make_private(tmp_path / name)
        assert not is_private(tmp_path / name)
    other = os.getuid() + 1
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(StateUnusable, match="is a link or belongs to another user; have it removed, or set TMPDIR"):
        make_private(aim)


def test_the_runtime_folder_comes_first_where_it_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert private_path("x") == runtime / "x"
    runtime.chmod(0o755)
    assert private_path("x") != runtime / "x"


def test_a_link_or_a_pipe_in_place_of_a_lock_is_not_opened(tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    (tmp_path / "link").symlink_to(aim)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        for mode in ("a", "w", "rb"):
            with pytest.raises(OSError, match=name):
                open_plain(tmp_path / name, mode)
        with pytest.raises(OSError, match=name):
            is_locked(tmp_path / name)
    assert not aim.exists()


def test_locks_are_not_made_through_a_link(temporary: Path) -> None:
    aim = temporary / "aim"
    aim.mkdir()
    (temporary / f"fractune-gate-{os.getuid()}").symlink_to(aim)
    with pytest.raises(StateUnusable):
        default_lock_dir()
    locks = CoreLocks(aim, 1)
    (aim / "core-0").symlink_to(temporary / "made")
    with pytest.raises(OSError, match="core-0"), locks.measuring([0]):
        pass
    assert not (temporary / "made").exists()


def test_a_daemon_in_a_strangers_folder_is_not_found(temporary: Path) -> None:
    folder = cuda.daemon_folder("GPU-1")
    folder.mkdir(mode=0o700)
    cuda.kept_mark(folder).touch()
    assert cuda.kept_daemons() == {"GPU-1": folder / "pipe"}
    folder.chmod(0o777)
    assert cuda.kept_daemons() == {}
    assert folder.parent == temporary


def test_the_scratch_folder_of_another_user_is_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / "fractune-scratch-left"
    left.mkdir()
    other = os.getuid() + 1
    with monkeypatch.context() as patch:
        patch.setattr("os.getuid", lambda: other)
        scratch_dir._sweep(temporary)
        assert left.exists()
    scratch_dir._sweep(temporary)
    assert not left.exists()
