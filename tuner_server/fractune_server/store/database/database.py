"""The database behind the store: connections, transactions, migrations, and errors in one line."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Row, RowMapping, Select, Table, bindparam, delete, false, inspect, text
from sqlalchemy.dialects import postgresql, sqlite

from fractune_core.errors import StateUnusable
from fractune_server.store.database.connections import errors_in_one_line, is_postgresql, make_engine, shown
from fractune_server.store.database.server_lock import ServerLock
from fractune_server.store.database.tables import roofs
from fractune_server.store.database.write_ahead_log import WriteAheadLog

SCHEMA = "0001"
"""the newest revision among the migrations"""
_MIGRATIONS = Path(__file__).with_name("migrations")
_PART = 500
NAMES: Any = bindparam("names", expanding=True)
"""the list that `rows_for` gives a query"""


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

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction, committed at the end or rolled back; within `writing`, a part of its transaction."""
        held: Connection | None = getattr(self._held, "writing", None)
        if held is not None:
            yield held
            return
        with self._writer, errors_in_one_line(self._url), self._begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All writes of this thread in the block are one transaction, because a commit waits for the disk."""
        with self.write() as connection:
            self._held.writing = connection
            try:
                yield
            finally:
                self._held.writing = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        held: Connection | None = getattr(self._held, "reading", None)
        if held is not None:
            yield held
            return
        with errors_in_one_line(self._url), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads of this thread in the block share a connection, because getting one costs as much as a read."""
        with self.read() as connection:
            self._held.reading = connection
            try:
                yield
            finally:
                self._held.reading = None

    def insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """An INSERT that can handle conflicts."""
        return postgresql.insert(table) if self.engine.dialect.name == "postgresql" else sqlite.insert(table)

    def insert_new(self, connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
        """Insert the rows with new keys; returns their number."""
        if not rows:
            return 0
        return connection.execute(self.insert(table).on_conflict_do_nothing(), rows).rowcount

    def insert_new_returning(
        self, connection: Connection, table: Table, rows: list[dict[str, Any]], columns: Sequence[Column[Any]]
    ) -> list[Row[Any]]:
        """Like `insert_new`; returns these columns of the inserted rows."""
        if not rows:
            return []
        statement = self.insert(table).on_conflict_do_nothing().returning(*columns)
        return list(connection.execute(statement, rows))

    def check_writable(self) -> None:
        """Raises StateUnusable if the database rejects writes now. Changes nothing."""
        with self.write() as connection:
            connection.execute(delete(roofs).where(false()))  # takes the lock that a write needs, and deletes nothing

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

    def _begin(self) -> AbstractContextManager[Connection]:
        return self.engine.begin() if self._lock is None else self._lock.begin()


class Repository:
    """One kind of rows. Any thread may call. Raises StateUnusable when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database


def parts(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """`items` in parts that fit into one statement."""
    for start in range(0, len(items), _PART):
        yield items[start : start + _PART]


def rows_for(connection: Connection, query: Select[Any], names: Iterable[str]) -> Iterator[Any]:
    """The rows of a query with `NAMES`, for any number of names."""
    for part in parts(list(names)):
        yield from connection.execute(query, {"names": part})


def as_dict(row: RowMapping) -> dict[str, Any]:
    """A row by plain column names; SQLAlchemy's are texts of its own."""
    return {str(name): value for name, value in row.items()}


def _migrate(connection: Connection, where: str) -> None:
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

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
