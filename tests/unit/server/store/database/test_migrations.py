"""The tables as migrations make them, and who may run these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from fractune_core.access.tokens import Quotas, Scope
from fractune_core.errors import StateUnusable
from fractune_server.store.database import database
from fractune_server.store.database.tables import metadata
from fractune_server.store.store import Store, sqlite_url
from fractune_server.store.tokens import TokenStore
from tests.support.samples import DEVICE, validation
from tests.support.store_contract import (
    KEY,
    OnSqlite,
    StoreContract,
    rows_by_group,
    validations_of,
)


class MigrationsContract(StoreContract):
    def test_the_migrations_make_the_tables(self, store: Store) -> None:
        with store.database.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []

    def test_a_log_of_the_first_schema_is_brought_up_to_date(self, make: Callable[[], Store]) -> None:
        old = make()
        old.log.add([validation("a", 1, 1.0)])
        old.log.add_workloads([("f" * 16, "[]")])
        with old.database.write() as connection:
            config = _migrations()
            config.attributes["connection"] = connection
            command.downgrade(config, "0001")
            assert "validation" not in str(connection.execute(text("SELECT kind, policy FROM records")).all())
        old.close()
        store = make()
        (record,) = validations_of(store, KEY.workload_hash).records
        assert (record.trace, record.disturbance, record.attempts, record.scope) == ("a", None, 0, "")
        store.log.add([validation("b", 1, 1.0)])
        assert len(validations_of(store, KEY.workload_hash).records) == 2
        assert store.log.arithmetic(["f" * 16]) == {}
        assert store.roofs.of(DEVICE.key) == {}
        assert store.log.totals() == rows_by_group(store) == {("cpu:1", "validation", "ok"): 2}
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
        with store.database.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0008'"))
        with pytest.raises(StateUnusable, match=f"has schema 0008, and this version needs {database.SCHEMA}"):
            database.Database(sqlite_url(tmp_path), may_migrate=False)
        beside.close()
        store.close()


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).with_name("migrations")))
    return config
