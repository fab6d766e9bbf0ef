"""The rehearsal of a trip to a lent GPU host, but for the packages; and what it says when something is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import rehearse
from benchmarks.gpu.parts import NAMED, PARTS
from tests.support.paths import REPOSITORY


@pytest.mark.long
@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is an NVIDIA driver here")
def test_every_part_is_carried_and_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    command = [str(REPOSITORY / "scripts" / "gpu_rehearse"), "--quick", "--work", str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHON": sys.executable}
    )
    assert ended.returncode == 0, ended.stderr
    rows = [line for line in ended.stdout.splitlines() if line.startswith("| part")]
    assert len(rows) == len(PARTS) + len(NAMED)
    assert "SIMULATED, its numbers mean nothing: " in ended.stdout
    assert not list(tmp_path.rglob("first-table*.json")), "its numbers are kept"
    assert (tmp_path / "results.tar.gz").stat().st_size > 0


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=rf"{tmp_path} has no pack.sh and no unpack.sh; name the folder"):
        rehearse.host_folder(tmp_path)
    with pytest.raises(SystemExit, match=r"no-such-python cannot be run .* name a Python 3.12 by --python"):
        rehearse.python_312("no-such-python")
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    rehearse.check_size(tmp_path / "large", 3)
    with pytest.raises(SystemExit, match=r"large has 2.0 MiB, and below 2 can be carried"):
        rehearse.check_size(tmp_path / "large", 2)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "code").write_bytes(bytes(3 << 20))
    rehearse.check_size(tmp_path / "large", 6, beside=tmp_path / "project")
    with pytest.raises(SystemExit, match=r"large has 2.0 MiB beside the 3.0 of project, and below 5 can be carried"):
        rehearse.check_size(tmp_path / "large", 5, beside=tmp_path / "project")
