"""The tables as migrations make them, and who may run these."""

from __future__ import annotations

from pathlib import Path

import pytest
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
from tests.support.store_contract import (
    OnSqlite,
    StoreContract,
)


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
