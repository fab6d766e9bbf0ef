"""The tables as migrations make them, and who may run these."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, text

from fractune_core.access.tokens import Quotas, Scope
from fractune_core.analysis.roofline import Roof
from fractune_core.codec.plain_json import to_dict
from fractune_core.errors import StateUnusable
from fractune_core.spending import Spending, WorkCost
from fractune_server.store.database import database
from fractune_server.store.database.tables import metadata
from fractune_server.store.records.rows import record_to_row
from fractune_server.store.store import Store, sqlite_url
from fractune_server.store.tokens import TokenStore
from tests.support.samples import DEVICE, WORKLOAD, validation
from tests.support.store_contract import (
    KEY,
    OnSqlite,
    StoreContract,
    rows_by_group,
    validations_of,
)


class MigrationsContract(StoreContract):
    def test_the_migrations_make_the_tables(self, store: Store) -> None:
        with store.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []

    def test_a_log_of_the_first_schema_is_brought_up_to_date(self, make: Callable[[], Store]) -> None:
        old = make()
        with old.write() as connection:
            _make(connection, "0001")
            row = record_to_row(validation("a", 1, 1.0))
            first_names = {
                "kind": "final",
                "policy": row["policy"] | {"name": "final"},
                "median_s": row["ranking_median_s"],
            }
            _insert(connection, "records", row | first_names)
            _insert(connection, "workloads", {"workload_hash": WORKLOAD, "json_zlib": zlib.compress(b"[]")})
        old.close()
        store = make()
        (record,) = validations_of(store, KEY.workload_hash).records
        assert (record.trace, record.disturbance, record.attempts, record.namespace) == ("a", None, 0, "")
        assert record.cpu_secs is None
        store.log.add([validation("b", 1, 1.0)])
        assert len(validations_of(store, KEY.workload_hash).records) == 2
        assert store.log.arithmetic([WORKLOAD]) == {}
        assert store.roofs.of(DEVICE.key) == {}
        assert store.log.totals() == rows_by_group(store) == {("cpu:1", "validation", "ok"): 2}
        store.close()

    def test_namespaces_and_tasks_are_read_from_a_database_with_their_former_names(
        self, make: Callable[[], Store]
    ) -> None:
        old = make()
        asked = {"model": "a" * 64, "model_name": "m.onnx", "shares": ["cpu:1"], "more": 3, "scope": "acme"}
        job: dict[str, Any] = dict.fromkeys(metadata.tables["jobs"].columns.keys(), "") | {
            "seq": 1, "id": "j1", "spec": asked, "state": "done", "created_at": 1.0, "ended_at": 2.0, "revision": 1,
            "device": DEVICE.to_json(), "granted": [], "notes": [], "progress": {}, "timings": {},
            "tuning_began": None, "tuning_ended": None,
        }  # fmt: skip
        with old.write() as connection:
            _make(connection, "0014")
            _insert(connection, "records", record_to_row(validation("a", 1, 1.0)) | {"scope": "acme"})
            _insert(connection, "pieces", to_dict(WorkCost("w1", "j1", "build", "", 3.0, 2.0, 5.0)) | {"do": "build"})
            _insert(connection, "jobs", job)
        old.close()
        store = make()
        (record,) = validations_of(store, KEY.workload_hash, "acme").records
        assert record.namespace == "acme"
        assert validations_of(store, KEY.workload_hash).records == ()
        spec = store.jobs.get("j1").spec
        assert (spec.extra_trials, spec.namespace) == (3, "acme")
        assert store.ledger.spent(["j1"]) == {"j1": [Spending("build", "", 1, 3.0, 2.0)]}
        store.close()

    def test_roofs_of_an_older_log_have_no_launch_floor_until_one_is_measured(self, make: Callable[[], Store]) -> None:
        old = make()
        with old.write() as connection:
            _make(connection, "0018")
            _insert(connection, "roofs", {"device_key": "d", "share_key": "s", **Roof(9.0, 2.0, 3).to_json()})
        old.close()
        store = make()
        assert store.roofs.of("d") == {"s": Roof(9.0, 2.0, 3)}
        store.roofs.add("d", "s", Roof(0.0, 0.0, 0, 3e-6))
        assert store.roofs.of("d") == {"s": Roof(9.0, 2.0, 3, 3e-6)}
        store.close()


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
            connection.execute(text("UPDATE alembic_version SET version_num = '0008'"))
        with pytest.raises(StateUnusable, match=f"has schema 0008, and this version needs {database.SCHEMA}"):
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


def _make(connection: Connection, schema: str) -> None:
    """The empty tables of an older schema, in place of those of today."""
    metadata.drop_all(connection)
    connection.execute(text("DROP TABLE alembic_version"))
    config = _migrations()
    config.attributes["connection"] = connection
    command.upgrade(config, schema)


def _insert(connection: Connection, name: str, row: dict[str, Any]) -> None:
    """Into the table as the database has it; columns of later versions are left out."""
    table = Table(name, MetaData(), autoload_with=connection)
    connection.execute(table.insert().values({each.name: row[each.name] for each in table.c if each.name in row}))
