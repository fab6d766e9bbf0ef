"""Locks on files. The kernel holds them, and frees those of a process that dies."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def lock(file: HasFileno | int, *, shared: bool = False) -> None:
    """Wait for the lock on an open file, and hold it until the file is closed.

    Exclusive: there is no other holder. `shared`: there may be other shared ones.
    """
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(file: HasFileno | int) -> bool:
    """As `lock`, exclusively and without waiting; False when the file has a holder."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock on the file at `path`, which is made where there is none, until the block ends."""
    with path.open("a") as file:
        lock(file, shared=shared)
        yield


def is_locked(path: Path) -> bool:
    """Whether some process, this one too, holds the exclusive lock on the file. A missing file is not locked."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
