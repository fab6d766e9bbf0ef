"""A real stack whose state folder lies on a disk that is too small; it is mounted for the test, which needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes.cli_process import error_line, run_fractune, write_model

Disk = Callable[[int], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Makes a disk of so many kilobytes; its folder."""
    with ExitStack() as mounted:

        def make(kilobytes: int) -> Path:
            folder = tmp_path / "disk"
            folder.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
            done = subprocess.run(mount, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no disk can be mounted here, which needs root: {done.stderr.strip()}")
            mounted.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            return folder

        yield make


@pytest.mark.parametrize("kilobytes", [100, pytest.param(600, marks=pytest.mark.long)])
def test_a_disk_that_is_full_is_named_as_the_cause(tmp_path: Path, disk: Disk, kilobytes: int) -> None:
    """The smaller one is full when Redis and the server have started, the larger one in mid-job."""
    model, state = write_model(tmp_path / "m.onnx"), disk(kilobytes) / "state"
    where = ("--state", str(state), "--out-dir", str(tmp_path), "--quiet")
    ended = run_fractune("tune", str(model), "--shares", "cpu:1", "--trials", "60", "--only", "conv2d", *where)
    assert ended.returncode == 7, ended.stderr
    said = f"state folder {state}: No space left on device; free space there, or pass --state with a writable folder"
    in_database = f"database {state / 'fractune.db'}: database or disk is full; free some space on that disk, then "
    assert error_line(ended).removeprefix("fractune: ").startswith((said, in_database))
