"""What a store must do on every database: its fixtures, and what the suites of its parts share."""

import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.jobs import JobSpec
from fractune_core.operators import workload_hash
from fractune_core.records import Kind, Status, TuningRecord
from fractune_server.store.jobs import StoredJob
from fractune_server.store.records.log import LogKey
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, WORKLOAD_TEXT, granted, validation

KEY = LogKey(WORKLOAD, TARGET_KEY, DEVICE.key)
EVERYTHING = RecordFilter()
TEXTS = {workload_hash(text): text for text in (WORKLOAD_TEXT, "[1]", "[2]", "[3]")}
WORKLOADS = list(TEXTS)


def trial(trace: str, units: int, secs: float, **changes: Any) -> TuningRecord:
    fields: dict[str, Any] = {"record_id": f"trial {trace}@{units}", "kind": Kind.TRIAL, **changes}
    return replace(validation(trace, units, secs), **fields)


def failed(trace: str, units: int) -> TuningRecord:
    return trial(trace, units, 1.0, status=Status.RUN_FAILED, cause="crashed", run_secs=())


def validations_of(store: Store, workload_hash: str, scope: str = "") -> ValidatedRecords:
    """Those that the store has of one operator."""
    return store.log.validated_of([workload_hash], scope)[workload_hash]


def job(name: str, **changes: Any) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:2", "cpu:1"))
    made = StoredJob(name, spec, 1.0, DEVICE, {"cpu:2": granted(2), "cpu:1": granted(1)}, "llvm")
    return replace(made, **changes)


def rows_by_group(store: Store) -> dict[tuple[str, str, str], int]:
    """How many rows the log has now, by share, kind and status."""
    query = text("SELECT share, kind, status, count(*) FROM records GROUP BY share, kind, status")
    with store.read() as connection:
        return {(share, kind, status): count for share, kind, status, count in connection.execute(query)}


def make_tables(folder: Path) -> str:
    """The URL of a new SQLite database. Its tables are a copy: the migrations take ten times as long."""
    (folder / _tables()[0]).write_bytes(_tables()[1])
    return sqlite_url(folder)


@functools.cache
def _tables() -> tuple[str, bytes]:
    """Name and content of the database's file."""
    with tempfile.TemporaryDirectory() as folder:
        Store(sqlite_url(Path(folder))).close()
        (file,) = Path(folder).iterdir()
        return file.name, file.read_bytes()


class StoreContract:
    """Each part of the contract is such a class; a further database inherits them all, and gives its own factory."""

    @pytest.fixture
    def make(self) -> Callable[[], Store]:
        raise NotImplementedError

    def plan(self, connection: Connection, query: str) -> str:
        """How the database would find the rows."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, make: Callable[[], Store]) -> Iterator[Store]:
        store = make()
        yield store
        store.close()


class OnSqlite(StoreContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Store]:
        url = make_tables(tmp_path)
        return lambda: Store(url)

    def plan(self, connection: Connection, query: str) -> str:
        return " ".join(str(row) for row in connection.execute(text(f"EXPLAIN QUERY PLAN {query}")))
