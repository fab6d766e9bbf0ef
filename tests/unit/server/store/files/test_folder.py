"""The state folder: one server at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fractune_core.errors import StateUnusable
from fractune_server.store.files.folder import StateFolder
from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import wait_until


class TestStateFolder:
    def test_a_second_server_is_refused_until_the_first_has_gone(self, tmp_path: Path) -> None:
        with (
            StateFolder(tmp_path / "state"),
            pytest.raises(StateUnusable, match=rf"in use by another server \(pid {os.getpid()}\)"),
        ):
            StateFolder(tmp_path / "state")
        StateFolder(tmp_path / "state").close()

    def test_a_killed_server_leaves_no_lock(self, tmp_path: Path) -> None:
        holder = "import sys, pathlib, time\nfrom fractune_server.store.files.folder import StateFolder\n"
        holder += "f = StateFolder(pathlib.Path(sys.argv[1]))\ntime.sleep(600)\n"
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path / "state")], env=env) as process:
            wait_until(lambda: (tmp_path / "state" / "lock").exists() and _is_locked(tmp_path / "state"))
            process.kill()
        StateFolder(tmp_path / "state").close()


def _is_locked(folder: Path) -> bool:
    try:
        StateFolder(folder).close()
    except StateUnusable:
        return True
    return False
