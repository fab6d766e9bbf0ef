"""Who holds a state folder, and whether the last one to do so died."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from fractune.local.state import LOCK_FILE, StackEntry, is_running, open_state, read_entry, take

_HOLDS = """
import sys
from pathlib import Path
from fractune.local.state import open_state
with open_state(Path(sys.argv[1])) as folder:
    folder.publish_address("127.0.0.1:5", for_others=True)
    print(flush=True)
    sys.stdin.read()
"""


SKIPS = StackEntry(7, "h:1", for_others=True, skipped_shares={"cpu:1500m": "busy\nprocesses"})


@pytest.mark.parametrize(
    "entry", [StackEntry(7), StackEntry(7, "unix:/a b"), StackEntry(7, "h:1", for_others=True), SKIPS]
)
def test_an_entry_is_read_as_it_was_written(tmp_path: Path, entry: StackEntry) -> None:
    (tmp_path / LOCK_FILE).write_text(entry.to_text())
    assert read_entry(tmp_path) == entry


@pytest.mark.parametrize("text", [None, "", "no number\n"])
def test_without_a_stack_there_is_no_entry_and_nothing_is_made(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / LOCK_FILE).write_text(text)
    before = list(tmp_path.iterdir())
    assert (read_entry(tmp_path), is_running(tmp_path)) == (None, False)
    assert list(tmp_path.iterdir()) == before


def test_a_stack_that_ended_in_order_leaves_no_entry_and_one_that_was_killed_does(tmp_path: Path) -> None:
    with open_state(tmp_path):
        assert is_running(tmp_path)
    assert (read_entry(tmp_path), is_running(tmp_path)) == (None, False)
    command = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        entry = StackEntry(holder.pid, "127.0.0.1:5", for_others=True)
        assert (read_entry(tmp_path), is_running(tmp_path)) == (entry, True)
        holder.kill()
    assert (read_entry(tmp_path), is_running(tmp_path)) == (entry, False)


def test_who_only_looks_keeps_no_stack_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / LOCK_FILE
    with path.open("a+") as looking, path.open("a+") as starting:
        fcntl.flock(looking, fcntl.LOCK_SH)
        # It has looked by the time that the other one tries again.
        monkeypatch.setattr("fractune.local.state.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        assert take(starting.fileno())
