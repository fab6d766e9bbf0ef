"""The short form of `scripts/chaos`: a real stack whose processes are killed for half a minute."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import users_of

pytestmark = [pytest.mark.alone, pytest.mark.long, pytest.mark.timeout(280)]


def test_a_stack_whose_processes_are_killed_loses_doubles_and_invents_nothing(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    folder = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))  # short: sockets lie in it
    ended = subprocess.run(
        [
            *(str(REPOSITORY / "scripts" / "chaos"), "--minutes", "0.5", "--every", "3", "--seed", "1"),
            *(
                "--jobs",
                "2",
                "--candidates",
                "8",
                "--shares",
                "cpu:1",
                "--keep",
                str(tmp_path / "s"),
                "--out",
                str(out),
            ),
        ],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
        env={**os.environ, "PYTHON": sys.executable, "TMPDIR": str(folder)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert sum(found["kills"].values()) >= 5
    assert set(found["jobs"]) == {"done"}
    assert found["jobs"]["done"] >= 2
    audit = found["audit"]
    assert (audit["lost"], audit["doubled"], audit["invented"]) == ([], [], [])
    assert audit["said"] - audit["unsent"] == audit["recorded"] - len(audit["given_up"]) > 0
    assert users_of(folder) == []
