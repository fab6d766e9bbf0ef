"""Lock files by name in one folder: they show which process uses what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

from fractune_workers.locks.flock import lock, locked, try_lock

Held = IO[str]
"""A lock that this process holds; closing it frees it"""


class FolderLocks:
    """Locks by name in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Until the block ends, no other process changes what the folder stands for."""
        with locked(self._path("door")):
            yield

    def share(self, name: str) -> Held:
        """Become one of the shared holders of `name`; waits while it is held exclusively."""
        file = self._path(name).open("a")
        lock(file, shared=True)
        return file

    def take(self, name: str) -> Held | None:
        """Become the only holder of `name`; None when it has a holder."""
        file = self._path(name).open("a")
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
