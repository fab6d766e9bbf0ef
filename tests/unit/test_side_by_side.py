"""Files of tests in several processes that one of them forks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY

_FILE = """
import os
import pytest

@pytest.fixture(scope="session")
def shared():
    yield os.getpid()
    with open({ended!r}, "a") as ended:
        ended.write(f"{{os.getpid()}}\\n")

def test_it_passes(shared, tmp_path):
    assert shared == os.getpid()

def test_it_says_something_and_fails():
    print("said", "before")
    assert os.getppid() == 1, "a reason"

def test_it_ends_its_process():
    os._exit(7)

def test_it_comes_after_that(shared):
    pass
"""


def test_each_file_is_run_once_and_a_dead_process_costs_one_test(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    for number in range(3):
        (tmp_path / f"test_{number}.py").write_text(_FILE.format(ended=str(ended)))
    words = ["-p", "tests.support.side_by_side", "-p", "no:cacheprovider", "--processes", "2", "--reruns", "1", "-raR"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(tmp_path), *words, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"6 failed, 6 passed, 6 rerun in", done.stdout), done.stdout + done.stderr
    assert done.returncode == 1
    assert done.stdout.count("E       AssertionError: a reason") == 3
    assert done.stdout.count("said before") in {3, 6}, "what a rerun captured is kept or not"
    assert len(re.findall(r"^RERUN", done.stdout, re.MULTILINE)) == 6
    assert done.stdout.count("the process of this test ended with 7") == 3
    assert ended.read_text(), "the fixtures of the session end with their process"
