"""Connections to SQLite and to PostgreSQL: how each is set up, and what their errors mean, in one line."""

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
from fractune_core.host.file_systems import network_file_system

_CONNECTIONS = 16
"""that stay open: more than there are threads that read at a time, so that none waits for one, or opens its own"""
_PRAGMAS = (
    "journal_mode=WAL",  # readers do not wait for the writer
    "synchronous=FULL",  # a record is acknowledged after the commit, so the commit must outlive a power cut
    "busy_timeout=10000",
)

# A host that is cut off is given up after some six seconds by both sides: here ...
_POSTGRESQL_OPTIONS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
    "application_name": f"fractune {socket.gethostname()} {os.getpid()}",
}
# ... and by PostgreSQL. A commit must outlive a power cut there too, whatever the database's default is.
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
"""what to do, by what the database's message contains"""


def make_engine(url: str) -> Engine:
    """Raises BadRequest for an address of no such database, StateUnusable for SQLite on a network file system."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # whose text may quote a part of the password
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
    """The place for messages: SQLite's file, or the address without its password."""
    return make_url(url).database or url if url.startswith("sqlite") else without_password(url)


@contextmanager
def errors_in_one_line(url: str) -> Iterator[None]:
    """Raises StateUnusable, or BadRequest for a value, in place of an error of the database at `url`."""
    try:
        yield
    except DataError as error:
        raise BadRequest(f"database {shown(url)} does not take a value: {one_line(error)}") from error
    except DBAPIError as error:
        said = one_line(error)
        raise StateUnusable(f"database {shown(url)}: {said}; {_advice(said)}") from error


def one_line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())


def _advice(said: str) -> str:
    fitting = (advice for advice, parts in _ADVICE.items() if any(part in said for part in parts))
    return next(fitting, "nothing committed is lost; see the message of the database")


def _no_database(url: str) -> BadRequest:
    return BadRequest(
        f"--database {shown(url)}: no address of a database; write postgresql://USER@HOST:PORT/NAME or sqlite:///PATH"
    )


def _sqlite(url: URL) -> Engine:
    _check_place(url.database or "")
    engine = create_engine(url, pool_size=_CONNECTIONS)
    event.listen(engine, "connect", _set_pragmas)
    return engine


def _check_place(file: str) -> None:
    """SQLite's write-ahead log is shared memory, which no network file system has (https://sqlite.org/wal.html)."""
    kind = network_file_system(Path(file).parent) if file not in ("", ":memory:") else None
    if kind is not None:
        raise StateUnusable(
            f"database {file}: it would lie on a network file system ({kind}), where SQLite loses data; "
            "pass --state with a folder on a disk of this machine, or --database with the URL of a PostgreSQL"
        )


def _set_pragmas(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _postgresql(url: URL) -> Engine:
    options = {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in url.query}
    # A read must not fail because its connection broke while nobody used it.
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"), connect_args=options, pool_pre_ping=True, pool_size=_CONNECTIONS
    )
    event.listen(engine, "connect", _set_up_postgresql)
    return engine


def _set_up_postgresql(connection: Any, _entry: ConnectionPoolEntry) -> None:
    """`connection`: psycopg's."""
    from psycopg.types.string import StrDumperUnknown

    class WithoutNul(StrDumperUnknown):
        """What a worker tells may hold a NUL, which PostgreSQL's text cannot."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    connection.adapters.register_dumper(str, WithoutNul)
    connection.execute(_POSTGRESQL_SETTINGS)
    connection.commit()
