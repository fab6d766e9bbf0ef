"""The folder of a worker that was killed goes, that of a living one stays."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fractune_workers.scratch_dir import open_scratch_dir

HOLDER = (
    "from fractune_workers.scratch_dir import open_scratch_dir\n"
    "with open_scratch_dir() as scratch_dir:\n    print(scratch_dir, flush=True)\n    input()"
)


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start_holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(parent), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_worker_left_goes_and_a_living_ones_stays(parent: Path) -> None:
    killed, left = start_holder(parent)
    living, kept = start_holder(parent)
    (left / "file").write_text("left behind")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    with open_scratch_dir() as own:
        assert own.parent == parent
        assert not left.exists()
        assert kept.exists()
    assert not own.exists()
    living.communicate("\n")
    assert living.returncode == 0
    assert not kept.exists()


def test_what_a_killed_child_left_goes_with_its_worker(parent: Path) -> None:
    with open_scratch_dir():
        killed, left = start_holder(parent)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        assert left.exists()
    assert list(parent.iterdir()) == []


def test_a_young_folder_may_not_be_locked_yet(parent: Path) -> None:
    young = Path(tempfile.mkdtemp(prefix="fractune-new-scratch-", dir=parent))
    with open_scratch_dir():
        assert young.exists()
    os.utime(young, (0, 0))
    with open_scratch_dir():
        assert not young.exists()


def test_what_is_no_folder_is_left_alone(parent: Path) -> None:
    (parent / "fractune-scratch-file").write_text("")
    (parent / "fractune-scratch-link").symlink_to(parent)
    with open_scratch_dir():
        assert (parent / "fractune-scratch-file").exists()
        assert (parent / "fractune-scratch-link").is_symlink()
