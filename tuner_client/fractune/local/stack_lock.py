"""The lock of a state folder: held while a stack runs there; its file has the stack's process and address."""

from __future__ import annotations

import contextlib
import fcntl
import time
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = "stack.lock"
_FOR_OTHERS = "for others"
_GLANCE_S = 0.02
"""longer than a check of the lock holds it"""


@dataclass(frozen=True)
class StackEntry:
    """A stack's entry in the lock's file."""

    pid: int
    address: str = ""
    """HOST:PORT or unix:PATH; empty while it starts"""
    for_others: bool = False
    """it runs until it is stopped, like the stack of `fractune up`; other stacks end with the command that started
    them"""

    def to_text(self) -> str:
        lines = [str(self.pid), self.address, _FOR_OTHERS if self.for_others else ""]
        return "\n".join(filter(None, lines)) + "\n"


def read_entry(state: Path) -> StackEntry | None:
    """The last stack's entry, of a running or a dead stack; None if the last stack ended in order, or none ran."""
    try:
        lines = (state / LOCK_FILE).read_text(encoding="utf-8").splitlines()
        return StackEntry(int(lines[0]), "".join(lines[1:2]), _FOR_OTHERS in lines[2:])
    except (OSError, ValueError, IndexError):
        return None


def is_running(state: Path) -> bool:
    """Return True if a process holds the folder. Nothing is made or changed there."""
    try:
        with (state / LOCK_FILE).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def take(descriptor: int) -> bool:
    """Lock the open file for this process; False if another process holds it. It waits out a check by `is_running`."""
    for _ in range(10):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_GLANCE_S)
    return False
