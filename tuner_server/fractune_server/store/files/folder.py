"""The server's state folder: created, checked to be writable, and locked against a second server."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import AbstractContextManager
from pathlib import Path

from fractune_core.errors import StateUnusable
from fractune_core.host.private_folders import warning_of_state

_log = logging.getLogger(__name__)


class StateFolder(AbstractContextManager["StateFolder"]):
    """Holds the lock of a state folder until it is closed. Raises StateUnusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (path / "lock").open("a+")
        except OSError as error:
            raise StateUnusable(
                f"state folder {path}: {error.strerror}; free some space there, or name another folder"
            ) from error
        self._take()
        if warning := warning_of_state(path):
            _log.warning("%s", warning)

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise StateUnusable(
                f"state folder {self.path} is in use by another server (pid {holder}); stop it, or name another folder"
            ) from error
        try:
            self._lock.truncate(0)
            self._lock.write(str(os.getpid()))
            self._lock.flush()
        except OSError as error:
            self._lock.close()
            raise StateUnusable(f"state folder {self.path}: {error.strerror}; free some space there") from error

    def close(self) -> None:
        self._lock.close()

    def __exit__(self, *_: object) -> None:
        self.close()
