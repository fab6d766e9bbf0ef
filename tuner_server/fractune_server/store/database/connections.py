"""Connections to SQLite and PostgreSQL: how they are set up, and their errors in one line."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from fractune_core.access.addresses import without_password
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.host.machine import network_file_system

_CONNECTIONS = 16
"""connections that stay open; more than threads read at a time, so that no thread waits or opens another one"""
_PRAGMAS = (
    "journal_mode=WAL",  # readers do not wait for the writer
    "synchronous=FULL",  # records are acknowledged after the commit, so the commit must survive a power cut
    "busy_timeout=10000",
)

# Both sides give up a host that is cut off after about six seconds: the server by these options ...
_POSTGRESQL_OPTIONS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
    "application_name": f"fractune {socket.gethostname()} {os.getpid()}",
}
# ... and PostgreSQL by these. A commit must survive a power cut there too, whatever the database's default is.
_POSTGRESQL_SETTINGS = """
    SELECT set_config('tcp_keepalives_idle', '3', false),
           set_config('tcp_keepalives_interval', '1', false),
           set_config('tcp_keepalives_count', '3', false),
           set_config('tcp_user_timeout', '5000', false),  -- where an answer is under way, nothing else counts
           set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false)
"""

_ADVICE = {
    "free some space on that disk, then start again; nothing committed is lost": (
        "disk is full",
        "disk I/O",
        "No space left",
    ),
    "another program writes to it: end that one, then start again; nothing committed is lost": ("is locked",),
    "make the folder writable, or name another one": ("readonly database", "unable to open"),
    "name a PostgreSQL that takes writes, or have this one take them again": ("read-only transaction",),
    "make the user in the address the owner of the database": ("permission denied",),
    "check the user in the address and --database-password-file": ("authentication failed", "no password supplied"),
    "create it, or name another one": ("FATAL: database",),
    "start it, or check the address": (
        *("connection failed", "connection is bad", "connection timeout", "resolve host"),
        *("closed the connection", "terminating connection"),
    ),
}
"""advice, by parts of the database's message"""


def make_engine(url: str) -> Engine:
    """Raises BadRequest for the URL of another database, StateUnusable for SQLite on a network file system."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the error may quote a part of the password
        raise _no_database(url) from None
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite(parsed)
        case "postgresql":
            return _postgresql(parsed)
    raise _no_database(url)


def is_postgresql(url: str) -> bool:
    return url.startswith("postgresql")


def shown(url: str) -> str:
    """The database's place for messages: SQLite's file, or the URL without its password."""
    return make_url(url).database or url if url.startswith("sqlite") else without_password(url)


@contextmanager
def errors_in_one_line(url: str) -> Iterator[None]:
    """Turn errors of the database at `url` into StateUnusable, and errors of a value into BadRequest."""
    try:
        yield
    except DataError as error:
        raise BadRequest(f"database {shown(url)} rejects a value: {one_line(error)}") from error
    except DBAPIError as error:
        message = one_line(error)
        raise StateUnusable(f"database {shown(url)}: {message}; {_advice(message)}") from error


def one_line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())


def _advice(message: str) -> str:
    fitting = (advice for advice, parts in _ADVICE.items() if any(part in message for part in parts))
    return next(fitting, "nothing committed is lost; see the message of the database")


def _no_database(url: str) -> BadRequest:
    return BadRequest(
        f"--database {shown(url)}: not a database's URL; write postgresql://USER@HOST:PORT/NAME or sqlite:///PATH"
    )


def _sqlite(url: URL) -> Engine:
    _check_place(url.database or "")
    engine = create_engine(url, pool_size=_CONNECTIONS)
    event.listen(engine, "connect", _set_pragmas)
    return engine


def _check_place(file: str) -> None:
    """SQLite's write-ahead log needs shared memory, which network file systems lack (https://sqlite.org/wal.html)."""
    kind = network_file_system(Path(file).parent) if file not in ("", ":memory:") else None
    if kind is not None:
        raise StateUnusable(
            f"database {file}: it would be on a network file system ({kind}), where SQLite loses data; "
            "pass --state with a folder on a disk of this machine, or --database with the URL of a PostgreSQL"
        )


def _set_pragmas(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _postgresql(url: URL) -> Engine:
    options = {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in url.query}
    # A read must not fail because its connection broke while it was idle.
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"), connect_args=options, pool_pre_ping=True, pool_size=_CONNECTIONS
    )
    event.listen(engine, "connect", _set_up_postgresql)
    return engine


def _set_up_postgresql(connection: Any, _entry: ConnectionPoolEntry) -> None:
    """`connection`: psycopg's."""
    from psycopg.types.string import StrDumperUnknown

    class WithoutNul(StrDumperUnknown):
        """Workers' texts may hold a NUL, which PostgreSQL's text cannot."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    connection.adapters.register_dumper(str, WithoutNul)
    connection.execute(_POSTGRESQL_SETTINGS)
    connection.commit()
