"""The state folder: one server at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fractune_core.errors import StateUnusable
from fractune_server.store.blob_files import StateFolder
from tests.support.paths import REPOSITORY


class TestStateFolder:
    def test_a_second_server_is_refused_until_the_first_has_gone(self, tmp_path: Path) -> None:
        with (
            StateFolder(tmp_path / "state"),
            pytest.raises(StateUnusable, match=rf"in use by another server \(pid {os.getpid()}\)"),
        ):
            StateFolder(tmp_path / "state")
        StateFolder(tmp_path / "state").close()

    def test_a_killed_server_leaves_no_lock(self, tmp_path: Path) -> None:
        holder = "import sys, pathlib, time\nfrom fractune_server.store.blob_files import StateFolder\n"
        holder += "f = StateFolder(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(600)\n"
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", holder, str(tmp_path / "state")]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(StateUnusable, match=f"pid {process.pid}"):
                StateFolder(tmp_path / "state")
            process.kill()
        StateFolder(tmp_path / "state").close()
