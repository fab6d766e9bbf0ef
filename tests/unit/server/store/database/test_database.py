"""Where the database cannot be used, the tables as migrations make them, and SQLite's write-ahead log."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event, text

from fractune_core.access import Quotas, Scope
from fractune_core.errors import StateUnusable
from fractune_core.host import machine
from fractune_server.store.database import database, database as module
from fractune_server.store.database.tables import metadata
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from fractune_server.store.tokens import TokenStore
from tests.support.samples import validation
from tests.support.store_contract import OnSqlite, StoreContract, trial


def test_a_database_that_another_program_locks_is_said_in_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PRAGMAS", (*database._PRAGMAS, "busy_timeout=50"))
    store = Store(sqlite_url(tmp_path))
    store.log.add([validation("a", 1, 1.0)])
    with contextlib.closing(sqlite3.connect(tmp_path / "fractune.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        said = r"fractune\.db: database is locked; another program writes to it: end that one, then start again"
        with pytest.raises(StateUnusable, match=said):
            store.log.add([validation("b", 1, 1.0)])
        assert store.log.count(RecordFilter()) == 1
        other.execute("ROLLBACK")
    store.log.add([validation("b", 1, 1.0)])
    assert store.log.count(RecordFilter()) == 2
    store.close()


def test_a_server_that_ends_while_it_makes_the_tables_leaves_none(tmp_path: Path) -> None:
    def end(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "CREATE TABLE jobs" in statement:
            raise KeyboardInterrupt

    event.listen(Engine, "before_cursor_execute", end)
    try:
        with pytest.raises(KeyboardInterrupt):
            Store(sqlite_url(tmp_path))
    finally:
        event.remove(Engine, "before_cursor_execute", end)
    with contextlib.closing(sqlite3.connect(tmp_path / "fractune.db")) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == []
    Store(sqlite_url(tmp_path)).close()


def test_sqlite_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nfiler:/x {tmp_path / 'home'} nfs4 rw 0 0\n")
    monkeypatch.setattr(machine, "MOUNTS", mounts)
    for name in ("home", "disk"):
        (tmp_path / name).mkdir()
    said = r"home/fractune\.db: it would be on a network file system \(nfs4\), where SQLite loses data; pass --state"
    with pytest.raises(StateUnusable, match=said):
        Store(sqlite_url(tmp_path / "home"))
    assert list((tmp_path / "home").iterdir()) == []
    Store(sqlite_url(tmp_path / "disk")).close()


def test_what_is_written_together_is_one_transaction(store: Store) -> None:
    def write_and_fail() -> None:
        with store.writing():
            store.log.add([validation("a", 1, 1.0)])
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write_and_fail()
    assert store.log.count(RecordFilter()) == 0
    with store.writing():
        store.log.add([validation("a", 1, 1.0)])
        assert store.log.count(RecordFilter()) == 0  # as others see it
        store.log.add([validation("b", 1, 1.0)])
    assert store.log.count(RecordFilter()) == 2


def test_what_is_read_together_takes_one_connection(store: Store) -> None:
    taken = []
    event.listen(store.engine, "checkout", lambda *_: taken.append(1))
    with store.reading():
        assert store.jobs.open_ids() == set()
        assert store.log.count(RecordFilter()) == 0
    assert len(taken) == 1
    assert store.jobs.open_ids() == set()
    assert len(taken) == 2


class MigrationsContract(StoreContract):
    def test_the_migrations_make_the_tables(self, store: Store) -> None:
        with store.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []


class TestSqliteMigrations(OnSqlite, MigrationsContract):
    def test_the_newest_migration_is_the_one_that_the_store_looks_for(self) -> None:
        assert ScriptDirectory.from_config(_migrations()).get_heads() == [database.SCHEMA]

    def test_another_process_neither_makes_nor_changes_a_database(self, tmp_path: Path) -> None:
        with pytest.raises(StateUnusable, match=r"no database at .*fractune\.db; start the server there once"):
            database.Database(sqlite_url(tmp_path), may_migrate=False)
        assert list(tmp_path.iterdir()) == []
        store = Store(sqlite_url(tmp_path))
        beside = database.Database(sqlite_url(tmp_path), may_migrate=False)
        made = TokenStore(beside).create("ci", Scope.READ, None, Quotas())
        assert store.tokens.find(made) is not None, "the server sees it at once"
        with store.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
        with pytest.raises(StateUnusable, match=f"has schema 0000, and this version needs {database.SCHEMA}"):
            database.Database(sqlite_url(tmp_path), may_migrate=False)
        beside.close()
        store.close()

    def test_a_database_of_a_newer_version_is_refused_in_one_line(self, tmp_path: Path) -> None:
        store = Store(sqlite_url(tmp_path))
        with store.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        store.close()
        with pytest.raises(StateUnusable, match=r"^database .* was made by a newer version of fractune; upgrade$"):
            Store(sqlite_url(tmp_path))


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).with_name("migrations")))
    return config


@pytest.fixture
def eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(module, "_LONG_BYTES", 1 << 20)
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    made = Store(sqlite_url(tmp_path))
    yield made
    made.close()


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """A call that has begun to read, and does not end within the block."""
    with closing(sqlite3.connect(folder / "fractune.db")) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM records").fetchone()
        yield


def fill(eager: Store, begin: int) -> None:
    eager.log.add([trial(str(number), 1, 1.0, cause="x" * 1000) for number in range(begin, begin + 2000)])


def test_a_log_from_which_somebody_always_reads_is_emptied(eager: Store, tmp_path: Path) -> None:
    file = tmp_path / "fractune.db-wal"
    with reading(tmp_path):
        fill(eager, 0)
        fill(eager, 2000)
        long = file.stat().st_size
        assert long > 2 << 20
        eager.keep_short()
        assert file.stat().st_size == long, "the reader began before all of it"
    eager.keep_short()
    assert file.stat().st_size == 0
    assert eager.log.count(RecordFilter()) == 4000


def test_a_short_log_is_left_alone(eager: Store, tmp_path: Path) -> None:
    file = tmp_path / "fractune.db-wal"
    eager.log.add([trial("a", 1, 1.0)])
    before = file.stat().st_size
    assert 0 < before < 1 << 20
    eager.keep_short()
    assert file.stat().st_size == before
