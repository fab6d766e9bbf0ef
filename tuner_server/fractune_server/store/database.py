"""The database behind the store: connections, transactions, migrations, and errors in one line."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Engine, Row, Table, create_engine, delete, event, false, inspect, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from fractune_core.errors import StateUnusable
from fractune_core.file_systems import network_file_system
from fractune_server.store.tables import roofs

SCHEMA = "0012"
"""the newest revision among the migrations"""
_MIGRATIONS = Path(__file__).with_name("migrations")
_PART = 500

_PRAGMAS = (
    "journal_mode=WAL",  # readers do not wait for the writer
    "synchronous=FULL",  # a record is acknowledged after the commit, so the commit must outlive a power cut
    "busy_timeout=10000",
)


class Database:
    """Any thread may call; writes take turns.

    Raises StateUnusable for a database that is read-only, full, damaged, or locked for longer than `busy_timeout`, and
    for SQLite on a network file system.
    """

    def __init__(self, url: str, *, may_migrate: bool = True) -> None:
        """With `may_migrate` the tables are made or brought up to date; else the database must be of this version."""
        self.url = url
        self._writer = threading.Lock()
        self._engine = create_engine(url)
        if self._engine.dialect.name == "sqlite":
            _check_place(self._engine.url.database or "")
            event.listen(self._engine, "connect", _set_pragmas)
        if may_migrate:
            with self._errors_in_one_line(), self._engine.begin() as connection:
                _migrate(connection)
        else:
            self._check_revision()

    def _check_revision(self) -> None:
        where = self._engine.url.database
        # SQLite would make the file.
        if self._engine.dialect.name == "sqlite" and not Path(str(where)).exists():
            raise StateUnusable(f"no database at {where}; start the server there once, or name another by --state")
        with self.read() as connection:
            found = _revision(connection)
        if found != SCHEMA:
            self.close()
            raise StateUnusable(
                f"database {where} has schema {found or 'none'}, and this version needs {SCHEMA}; "
                "start the server of this version first, or use the fractune that the server is of"
            )

    @property
    def engine(self) -> Engine:
        return self._engine

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed at the end, or rolled back whole."""
        with self._writer, self._errors_in_one_line(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._errors_in_one_line(), self._engine.connect() as connection:
            yield connection

    def insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """An INSERT for which a conflict can be settled."""
        return postgresql.insert(table) if self._engine.dialect.name == "postgresql" else sqlite.insert(table)

    def insert_new(self, connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
        """Insert the rows whose key is not there yet; returns how many those were."""
        if not rows:
            return 0
        return connection.execute(self.insert(table).on_conflict_do_nothing(), rows).rowcount

    def insert_new_returning(
        self, connection: Connection, table: Table, rows: list[dict[str, Any]], columns: Sequence[Column[Any]]
    ) -> list[Row[Any]]:
        """As `insert_new`; returns these columns of the rows that were inserted."""
        if not rows:
            return []
        statement = self.insert(table).on_conflict_do_nothing().returning(*columns)
        return list(connection.execute(statement, rows))

    def check_writable(self) -> None:
        """Raises StateUnusable for a database that takes no writes now; changes nothing."""
        with self.write() as connection:
            connection.execute(delete(roofs).where(false()))  # takes the lock that a write needs, and deletes nothing

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _errors_in_one_line(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            where = self._engine.url.database or self._engine.url.render_as_string(hide_password=True)
            raise StateUnusable(f"database {where}: {error.orig}; {_advice(str(error.orig))}") from error


def _check_place(file: str) -> None:
    """SQLite's write-ahead log is shared memory, which no network file system has (https://sqlite.org/wal.html)."""
    kind = network_file_system(Path(file).parent) if file not in ("", ":memory:") else None
    if kind is not None:
        raise StateUnusable(
            f"database {file}: it would lie on a network file system ({kind}), where SQLite loses data; "
            "pass --state with a folder on a disk of this machine, or --database with the URL of a PostgreSQL"
        )


def parts(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """`items` in pieces that fit into one statement."""
    for start in range(0, len(items), _PART):
        yield items[start : start + _PART]


def _advice(message: str) -> str:
    if "full" in message or "disk I/O" in message:
        return "free some space on that disk, then start again; nothing committed is lost"
    if "locked" in message:
        return "another program writes to it: end that one, then start again; nothing committed is lost"
    if "readonly" in message or "unable to open" in message:
        return "make the folder writable, or name another one"
    return "nothing committed is lost; see the message of the database"


def _set_pragmas(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _migrate(connection: Connection) -> None:
    """Bring the tables up to date. Alembic costs half a second, and is loaded for a database that needs it only."""
    if _revision(connection) == SCHEMA:
        return
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
