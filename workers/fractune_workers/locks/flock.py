"""Locks on files. The kernel holds them, and frees those of a process that dies."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import quote

from fractune_core.host.private_folders import open_plain


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
    with open_plain(path, "a") as file:
        lock(file, shared=shared)
        yield


def is_locked(path: Path) -> bool:
    """Whether some process, this one too, holds the exclusive lock on the file. A missing file is not locked."""
    try:
        with open_plain(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


Held = IO[str]
"""A lock that this process holds; closing it frees it"""


class FolderLocks:
    """Locks by name in `folder`: they show which process uses what."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Until the block ends, no other process changes what the folder stands for."""
        with locked(self._path("door")):
            yield

    def share(self, name: str) -> Held:
        """Become one of the shared holders of `name`; waits while it is held exclusively."""
        file = open_plain(self._path(name), "a")
        lock(file, shared=True)
        return file

    def take(self, name: str) -> Held | None:
        """Become the only holder of `name`; None when it has a holder."""
        file = open_plain(self._path(name), "a")
        if try_lock(file):
            return file
        file.close()
        return None

    def is_free(self, name: str) -> bool:
        held = self.take(name)
        if held is not None:
            held.close()
        return held is not None

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}.lock"
