"""SQLite's write-ahead log. SQLite restarts it only while no reader uses it: never, if calls overlap all the time.

SQLite calls this checkpoint starvation (https://sqlite.org/wal.html). With 200 clients the log grew to 765 MB within 18
minutes.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

_LONG_BYTES = 64 << 20
_PATIENCE_S = 0.5
"""wait for the present readers of the log; later ones read from the database"""
_EVERY_S = 10.0


class WriteAheadLog:
    """One thread at a time."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._file = database.with_name(f"{database.name}-wal")
        self._next_s = 0.0

    def keep_short(self) -> None:
        """Empty the log if it is long. There must be no writer; a long reader postpones it."""
        now_s = time.monotonic()
        if now_s < self._next_s or not self._is_long():
            return
        self._next_s = now_s + _EVERY_S
        # The next write reports problems of the database.
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(self._database, timeout=_PATIENCE_S)) as connection,
        ):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _is_long(self) -> bool:
        try:
            return self._file.stat().st_size > _LONG_BYTES
        except FileNotFoundError:
            return False
