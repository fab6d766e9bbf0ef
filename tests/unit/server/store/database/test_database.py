"""Where the database cannot be used: locked by another program, or on a network's disk."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from fractune_core.errors import StateUnusable
from fractune_core.host import machine
from fractune_server.store.database import database
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from tests.support.samples import validation


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
