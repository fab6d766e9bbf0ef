"""The lock that lets only one server write to a PostgreSQL; it ends with its connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from fractune_core.errors import StateUnusable
from fractune_server.store.database.connections import errors_in_one_line, make_engine, one_line, shown

_KEY = int.from_bytes(b"frac", "big")
"""key of the advisory lock, which is local to a database"""
_LOST = (
    "the connection that held this server's lock is lost, so it writes nothing any more; "
    "start it again: it continues, or waits for the server that has taken over"
)


class ServerLock(AbstractContextManager["ServerLock"]):
    """Holds a connection until it is closed; one thread at a time. Raises StateUnusable, and BadRequest for the URL.

    PostgreSQL releases an advisory lock when its session ends, after the session's last transaction. Therefore all
    writes through the lock's connection happen while the lock is held, however late the server notices its loss.
    """

    def __init__(self, url: str) -> None:
        self.where = shown(url)
        self._url = url
        self._is_held = False
        self._engine = make_engine(url)
        with errors_in_one_line(url):
            self._connection = self._engine.connect()

    def take(self) -> bool:
        """False while another server holds the lock."""
        with errors_in_one_line(self._url), self.begin() as connection:
            self._is_held = bool(connection.scalar(select(func.pg_try_advisory_lock(_KEY))))
        return self._is_held

    def check(self) -> None:
        """Raises StateUnusable if the lock is lost."""
        with errors_in_one_line(self._url), self.begin() as connection:
            connection.execute(select(1))

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction of the lock's connection, like an engine's. Raises StateUnusable if the lock is lost."""
        if self._connection.invalidated:  # SQLAlchemy would connect again, without the lock
            raise StateUnusable(f"database {self.where}: {_LOST}")
        try:
            with self._connection.begin():
                yield self._connection
        except DBAPIError as error:
            if not (error.connection_invalidated and self._is_held):
                raise
            raise StateUnusable(f"database {self.where}: {one_line(error)}; {_LOST}") from error

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()

    def __exit__(self, *_: object) -> None:
        self.close()
