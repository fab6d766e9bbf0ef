"""The database behind the store: connections, its lock, transactions, migrations, and errors in one line."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from fractune_core.access import without_password
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.host.machine import network_file_system
from fractune_server.store.database.sight import ALL_TENANTS, Fence, Sight
from fractune_server.store.database.tables import roofs

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


def make_engine(url: str) -> sa.Engine:
    """Raises BadRequest for the URL of another database, StateUnusable for SQLite on a network file system."""
    try:
        parsed = sa.make_url(url)
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
    return sa.make_url(url).database or url if url.startswith("sqlite") else without_password(url)


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


def _sqlite(url: sa.URL) -> sa.Engine:
    _check_place(url.database or "")
    engine = sa.create_engine(url, pool_size=_CONNECTIONS)
    sa.event.listen(engine, "connect", _set_pragmas)
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


def _postgresql(url: sa.URL) -> sa.Engine:
    options = {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in url.query}
    # A read must not fail because its connection broke while it was idle.
    engine = sa.create_engine(
        url.set(drivername="postgresql+psycopg"), connect_args=options, pool_pre_ping=True, pool_size=_CONNECTIONS
    )
    sa.event.listen(engine, "connect", _set_up_postgresql)
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
            self._is_held = bool(connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_KEY))))
        return self._is_held

    def check(self) -> None:
        """Raises StateUnusable if the lock is lost."""
        with errors_in_one_line(self._url), self.begin() as connection:
            connection.execute(sa.select(1))

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
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


SCHEMA = "0001"
"""the newest revision among the migrations"""
_MIGRATIONS = Path(__file__).with_name("migrations")
_PART = 500
NAMES: Any = sa.bindparam("names", expanding=True)
"""the list that `rows_for` gives a query"""


_S = TypeVar("_S", sa.Select[Any], sa.Update, sa.Delete)


class Database:
    """Any thread may call; one thread writes at a time.

    Raises StateUnusable for a database that is read-only, full, damaged, unreachable, or locked for longer than
    `busy_timeout`, and for SQLite on a network file system. Raises BadRequest for the URL of another database, and for
    a value that the database rejects.
    """

    def __init__(self, url: str, *, may_migrate: bool = True, lock: ServerLock | None = None) -> None:
        """With `may_migrate` the database is created or migrated; otherwise it must have the newest schema.

        With `lock` all writes use the lock's connection, so that they fail when the lock is lost.
        """
        self.sight = ALL_TENANTS
        self._url = url
        self._lock = lock
        self._writer = threading.Lock()
        self._held = threading.local()
        self.engine = make_engine(url)
        self._write_ahead_log = None if is_postgresql(url) else WriteAheadLog(Path(shown(url)))
        try:
            if may_migrate:
                with self.write() as connection:
                    _migrate(connection, shown(self._url))
            else:
                self._check_revision()
        except BaseException:
            self.close()
            raise

    def _check_revision(self) -> None:
        where = shown(self._url)
        # SQLite would create the file.
        if not is_postgresql(self._url) and not Path(where).exists():
            raise StateUnusable(f"no database at {where}; start the server there once, or name another by --state")
        with self.read() as connection:
            found = _revision(connection)
        if found != SCHEMA:
            raise StateUnusable(
                f"database {where} has schema {found or 'none'}, and this version needs {SCHEMA}; "
                "start the server of this version first, or use the server's version of fractune"
            )

    def of(self, sight: Sight) -> Database:
        """The same database, in which the sight limits what can be read and written."""
        seen = copy.copy(self)
        seen.sight = sight
        return seen

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction, committed at the end or rolled back; within `writing`, a part of its transaction."""
        with self._transaction() as connection:
            yield self._fenced(connection)

    def _fenced(self, connection: sa.Connection) -> sa.Connection:
        return connection if self.sight.seen is None else cast("sa.Connection", Fence(connection, self.sight))

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        held: sa.Connection | None = getattr(self._held, "writing", None)
        if held is not None:
            yield held
            return
        with self._writer, errors_in_one_line(self._url), self._begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All writes of this thread in the block are one transaction, because a commit waits for the disk."""
        with self._transaction() as connection:
            self._held.writing = connection
            try:
                yield
            finally:
                self._held.writing = None

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        with self._connected() as connection:
            yield self._fenced(connection)

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        held: sa.Connection | None = getattr(self._held, "reading", None)
        if held is not None:
            yield held
            return
        with errors_in_one_line(self._url), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads of this thread in the block share a connection, because getting one costs as much as a read."""
        with self._connected() as connection:
            self._held.reading = connection
            try:
                yield
            finally:
                self._held.reading = None

    def insert(self, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
        """An INSERT that can handle conflicts."""
        return postgresql.insert(table) if self.engine.dialect.name == "postgresql" else sqlite.insert(table)

    def insert_new(self, connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> int:
        """Insert the rows with new keys; returns their number."""
        if not rows:
            return 0
        return connection.execute(self.insert(table).on_conflict_do_nothing(), rows).rowcount

    def insert_new_returning(
        self, connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]], columns: Sequence[sa.Column[Any]]
    ) -> list[sa.Row[Any]]:
        """Like `insert_new`; returns these columns of the inserted rows."""
        if not rows:
            return []
        statement = self.insert(table).on_conflict_do_nothing().returning(*columns)
        return list(connection.execute(statement, rows))

    def check_writable(self) -> None:
        """Raises StateUnusable if the database rejects writes now. Changes nothing."""
        with self.write() as connection:
            # It takes the lock that a write needs, and deletes nothing.
            connection.execute(sa.delete(roofs).where(sa.false()))

    def check_lock(self) -> None:
        """Raises StateUnusable if this server's lock is lost, and another server may be working."""
        if self._lock is not None:
            with self._writer:
                self._lock.check()

    def keep_short(self) -> None:
        """Keep SQLite's write-ahead log short; call it regularly. PostgreSQL needs nothing."""
        if self._write_ahead_log is not None:
            with self._writer:
                self._write_ahead_log.keep_short()

    def close(self) -> None:
        self.engine.dispose()

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        return self.engine.begin() if self._lock is None else self._lock.begin()


class Repository:
    """One kind of rows, as far as the database's sight goes. Any thread may call. Raises StateUnusable when the
    database cannot be used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sight = database.sight

    def _seen(self, statement: _S, table: sa.Table) -> _S:
        """The statement for the rows of `table` that are seen. The statement itself, if these are all: it may be one
        that was made once.
        """
        conditions = self._sight.conditions(table)
        return statement.where(*conditions) if conditions else statement


def parts(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """`items` in parts that fit into one statement."""
    for start in range(0, len(items), _PART):
        yield items[start : start + _PART]


def rows_for(connection: sa.Connection, query: sa.Select[Any], names: Iterable[str]) -> Iterator[Any]:
    """The rows of a query with `NAMES`, for any number of names."""
    for part in parts(list(names)):
        yield from connection.execute(query, {"names": part})


def as_dict(row: sa.RowMapping) -> dict[str, Any]:
    """A row by plain column names; SQLAlchemy's are texts of its own."""
    return {str(name): value for name, value in row.items()}


def _migrate(connection: sa.Connection, where: str) -> None:
    """Migrate the tables of the database `where`. Loading Alembic takes half a second, so it is loaded only if needed.

    Raises StateUnusable for the database of a newer version.
    """
    found = _revision(connection)
    if found == SCHEMA:
        return
    if found is not None and found > SCHEMA:  # revisions have four digits
        raise StateUnusable(f"database {where} was made by a newer version of fractune; upgrade")
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "sqlite":
        # Python's driver begins no transaction for a statement that makes a table: each would stay after a kill.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
