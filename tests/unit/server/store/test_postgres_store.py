"""The store's contract on PostgreSQL, and what is said where it cannot be used."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, text

from fractune_core.access import Quotas, Scope, with_password
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.records import Status
from fractune_server.store.database.database import SCHEMA, Database, ServerLock
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store
from fractune_server.store.tokens import TokenStore
from tests.support.processes.postgres_process import LOCKED_USER, PASSWORD, STRANGER, Postgres
from tests.support.processes.redis_process import wait_until
from tests.support.store_contract import EVERYTHING, trial
from tests.unit.server.store.database.test_database import MigrationsContract
from tests.unit.server.store.records.test_log import LogContract
from tests.unit.server.store.records.test_validated import ValidatedContract
from tests.unit.server.store.test_store import JobsContract, KeptContract
from tests.unit.server.store.test_tenants import LimitsContract, TenantsContract, TokensContract


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as name:
        yield name


class TestPostgresStore(
    LogContract,
    ValidatedContract,
    JobsContract,
    TokensContract,
    TenantsContract,
    LimitsContract,
    KeptContract,
    MigrationsContract,
):
    @pytest.fixture
    def make(self, postgres: Postgres, database: str) -> Callable[[], Store]:
        return lambda: Store(postgres.url(database))

    def plan(self, connection: Connection, query: str) -> str:
        # Of an empty table no index is worth its reading; with these off, a plan without one means that none fits.
        for way in ("enable_seqscan", "enable_bitmapscan"):
            connection.execute(text(f"SET LOCAL {way} = off"))
        return " ".join(str(row) for row in connection.execute(text(f"EXPLAIN {query}")))

    def test_every_migration_runs_in_an_empty_database(self, postgres: Postgres) -> None:
        with postgres.database(empty=True) as name:
            store = Store(postgres.url(name))
            store.log.add([trial("a", 1, 1.0)])
            store.close()
            beside = Database(postgres.url(name), may_migrate=False)
            assert TokenStore(beside).create("ci", Scope.READ, None, Quotas()).token_id
            beside.close()

    def test_another_process_does_not_change_a_database(self, postgres: Postgres) -> None:
        with postgres.database(empty=True) as name:
            said = (
                rf"database postgresql://.*/{name}\?host=.* has schema none, and this version needs {SCHEMA}; start the"
            )
            with pytest.raises(StateUnusable, match=said):
                Database(postgres.url(name), may_migrate=False)

    def test_a_text_with_nul_is_kept_without_it(self, store: Store) -> None:
        store.log.add([trial("a", 1, 1.0, status=Status.RUN_FAILED, cause="crashed\0 here", run_secs=())])
        assert [record.cause for record in store.log.all(EVERYTHING)] == ["crashed\N{REPLACEMENT CHARACTER} here"]
        assert store.log.count(RecordFilter(operator="conv\0")) == 0

    def test_a_value_that_does_not_fit_is_refused_as_such(self, store: Store) -> None:
        with pytest.raises(BadRequest, match=r"rejects a value: value too long for type character varying\(64\)"):
            store.log.add([trial("a", 1, 1.0, job="j" * 65)])
        assert store.log.add([trial("a", 1, 1.0)]) == 1

    def test_a_commit_outlives_a_power_cut_though_the_database_s_default_is_otherwise(
        self, postgres: Postgres, database: str
    ) -> None:
        for default, used in (("off", "on"), ("remote_apply", "remote_apply")):
            changed = Store(f"{postgres.url(database)}&options=-csynchronous_commit%3D{default}")
            with changed.write() as connection:
                assert connection.scalar(text("SHOW synchronous_commit")) == used
            changed.close()

    def test_a_read_is_not_lost_with_a_connection_that_broke_while_nobody_used_it(
        self, store: Store, postgres: Postgres, database: str
    ) -> None:
        store.log.add([trial("a", 1, 1.0)])
        assert postgres.end_sessions(database)
        assert store.log.count(EVERYTHING) == 1

    def test_a_read_only_database_is_said_in_one_line(self, store: Store) -> None:
        @event.listens_for(store.engine, "connect")
        def _read_only(connection: object, _: object) -> None:
            connection.execute("SET default_transaction_read_only = on")  # type: ignore[attr-defined]
            connection.commit()  # type: ignore[attr-defined]

        store.close()
        with pytest.raises(StateUnusable, match=r"read-only transaction; name a PostgreSQL that takes writes"):
            store.check_writable()


class TestServerLock:
    def test_one_server_a_database_at_a_time(self, postgres: Postgres, database: str) -> None:
        with ServerLock(postgres.url(database)) as first, ServerLock(postgres.url(database)) as second:
            assert first.take()
            assert not second.take()
            first.check()
            first.close()
            wait_until(second.take)  # its session ends a moment later

    def test_two_databases_have_a_server_each(self, postgres: Postgres, database: str) -> None:
        with (
            postgres.database(empty=True) as other,
            ServerLock(postgres.url(database)) as first,
            ServerLock(postgres.url(other)) as second,
        ):
            assert first.take()
            assert second.take()

    def test_a_server_that_has_lost_its_connection_writes_nothing_any_more(
        self, postgres: Postgres, database: str
    ) -> None:
        with ServerLock(postgres.url(database)) as first, ServerLock(postgres.url(database)) as second:
            assert first.take()
            store = Store(postgres.url(database), first)
            store.log.add([trial("a", 1, 1.0)])
            store.check_lock()
            postgres.end_lock_holder(database)
            assert second.take()
            for _ in range(2):  # the first one meets the broken connection, the second one must not make a new one
                with pytest.raises(StateUnusable, match=r"the connection that held this server's lock is lost"):
                    store.log.add([trial("b", 1, 1.0)])
            for refused in (store.check_lock, store.check_writable):
                with pytest.raises(StateUnusable, match=r"it continues, or waits for the server that has taken over"):
                    refused()
            assert store.log.count(EVERYTHING) == 1, "it may still read"
            store.close()

    def test_a_server_that_waits_says_what_it_has_lost(self, postgres: Postgres, database: str) -> None:
        with ServerLock(postgres.url(database)) as first, ServerLock(postgres.url(database)) as second:
            assert first.take()
            assert not second.take()
            assert postgres.end_sessions(database) == 2
            with pytest.raises(StateUnusable, match=r"terminating connection .*; start it, or check the address"):
                second.take()

    def test_a_transaction_that_was_open_when_the_lock_was_lost_is_not_committed(
        self, postgres: Postgres, database: str
    ) -> None:
        def write_while_the_lock_is_lost() -> None:
            with store.write() as connection:
                connection.execute(text("INSERT INTO spaces VALUES ('w', 't', false, 'v', 1)"))
                postgres.end_lock_holder(database)

        with ServerLock(postgres.url(database)) as lock:
            assert lock.take()
            store = Store(postgres.url(database), lock)
            with pytest.raises(StateUnusable, match="is lost"):
                write_while_the_lock_is_lost()
            with store.read() as connection:
                assert connection.scalar(text("SELECT count(*) FROM spaces")) == 0
            store.close()


class TestWhatIsSaid:
    """One line, without the password, that says what to do."""

    def test_the_password_is_taken_and_shown_nowhere(
        self, postgres: Postgres, database: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        url = postgres.url(database, LOCKED_USER)
        with ServerLock(with_password(url, PASSWORD)) as lock:
            assert lock.take()
        said = []
        for refused in (url, with_password(url, f"not {PASSWORD}")):
            with pytest.raises(
                StateUnusable, match=r"; check the user in the address and --database-password"
            ) as error:
                ServerLock(refused)
            said.append(str(error.value))
        assert "no password supplied" in said[0]
        assert f"{LOCKED_USER}:***@" in said[1]
        for text_ in (lock.where, *said, caplog.text):
            assert PASSWORD not in text_
            assert with_password("://", PASSWORD)[4:-1] not in text_
        assert not any("\n" in line for line in said)

    def test_a_user_who_may_not_make_tables(self, postgres: Postgres) -> None:
        with (
            postgres.database(empty=True) as name,
            pytest.raises(StateUnusable, match=r"permission denied for schema public.*the owner of the database"),
        ):
            Store(postgres.url(name, STRANGER))

    def test_a_database_that_there_is_not(self, postgres: Postgres) -> None:
        with pytest.raises(StateUnusable, match=r'database "none" does not exist; create it, or name another one'):
            ServerLock(postgres.url("none"))

    def test_no_server(self, tmp_path: Path) -> None:
        with pytest.raises(
            StateUnusable, match=r"No such file or directory.*start it, or check the address"
        ) as refused:
            ServerLock(f"postgresql://fractune@/fractune?host={tmp_path}")
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        "url", ["nonsense", "postgres://u:secret@h/d", "mysql://u:secret@h/d", "postgresql://u:secret@h:port/d"]
    )
    def test_no_address(self, url: str) -> None:
        with pytest.raises(
            BadRequest, match=r"not a database's URL; write postgresql://USER@HOST:PORT/NAME"
        ) as refused:
            Database(url)
        assert "secret" not in str(refused.value)
