"""Lock files in one folder, that tell which process holds what. The kernel frees those of a process that dies."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

Held = IO[str]
"""A lock that this process holds; closing it frees it"""


class FolderLocks:
    """Locks by name in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def door(self) -> Iterator[None]:
        """Waits until nobody else is changing what the folder stands for."""
        with self._file("door") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def share(self, name: str) -> Held:
        """One of many holders; waits while `name` is held alone."""
        file = self._file(name)
        fcntl.flock(file, fcntl.LOCK_SH)
        return file

    def take(self, name: str) -> Held | None:
        """The only holder, or None while somebody holds `name`."""
        file = self._file(name)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def is_free(self, name: str) -> bool:
        held = self.take(name)
        if held is not None:
            held.close()
        return held is not None

    def _file(self, name: str) -> Held:
        return (self._folder / f"{quote(name, safe='')}.lock").open("a")
