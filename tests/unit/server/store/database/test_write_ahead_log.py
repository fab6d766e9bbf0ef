"""SQLite's write-ahead log while calls that read overlap all the time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fractune_server.store.database import database as module
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from tests.support.store_contract import trial


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
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


def fill(store: Store, begin: int) -> None:
    store.log.add([trial(str(number), 1, 1.0, cause="x" * 1000) for number in range(begin, begin + 2000)])


def test_a_log_from_which_somebody_always_reads_is_emptied(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "fractune.db-wal"
    with reading(tmp_path):
        fill(store, 0)
        fill(store, 2000)
        long = file.stat().st_size
        assert long > 2 << 20
        store.keep_short()
        assert file.stat().st_size == long, "the reader began before all of it"
    store.keep_short()
    assert file.stat().st_size == 0
    assert store.log.count(RecordFilter()) == 4000


def test_a_short_log_is_left_alone(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "fractune.db-wal"
    store.log.add([trial("a", 1, 1.0)])
    before = file.stat().st_size
    assert 0 < before < 1 << 20
    store.keep_short()
    assert file.stat().st_size == before
