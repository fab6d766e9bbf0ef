"""A real PostgreSQL for tests, on a Unix socket, with an empty database for each test."""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fractune_server.store.database.tables import metadata
from fractune_server.store.store import Store
from tests.support.processes.redis_process import wait_until

USER = "fractune"
LOCKED_USER, PASSWORD = "locked", "p@ss/word:?"
"""may do everything too, and has to say its password"""
STRANGER = "stranger"
"""may log in, and do nothing"""

_ROLES = (
    sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(sql.Identifier(LOCKED_USER), sql.Literal(PASSWORD)),
    sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(STRANGER)),
)
_EMPTY, _MIGRATED = "template1", "migrated"
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "shared_buffers": "16MB",
}


class Postgres:
    """A PostgreSQL in `folder`, run as a user that may write there. Skips the test where there is none."""

    def __init__(self, folder: Path, network: str = "") -> None:
        """`network`: addresses, as 10.0.0.0/8, from which everybody may do everything."""
        self._network = network
        self._folder = folder
        self._programs = _programs()
        self._as_user = _as_user(folder)
        self._numbers = itertools.count()
        self._emptied: list[str] = []
        data = folder / "data"
        make = (self._programs / "initdb", "-D", data, "-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C")
        subprocess.run([*make, "--no-sync"], check=True, stdout=subprocess.DEVNULL, **self._as_user)
        rules = data / "pg_hba.conf"
        own = [f"local all {LOCKED_USER} scram-sha-256", *([f"host all all {network} trust"] if network else [])]
        rules.write_text("\n".join([*own, rules.read_text()]))
        self.start()
        try:
            for role in _ROLES:
                self.execute(role)
            self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_MIGRATED)))
            Store(self.url(_MIGRATED)).close()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        listen = {"listen_addresses": "*" if self._network else ""}
        settings = [f"--{name}={value}" for name, value in (_SETTINGS | listen).items()]
        command: list[str | Path] = [
            self._programs / "postgres",
            "-D",
            self._folder / "data",
            "-k",
            self._folder,
            *settings,
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, **self._as_user)
        wait_until(self._answers)

    def stop(self) -> None:
        """At once: sessions are cut off, and what was committed is found again at the next start."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def url(self, database: str, user: str = USER) -> str:
        return f"postgresql://{user}@/{database}?host={self._folder}"

    def execute(self, statement: sql.SQL | sql.Composed) -> list[Any]:
        """Outside of any transaction, and of the tests' databases."""
        return self._execute("postgres", statement)

    def _execute(self, database: str, statement: sql.SQL | sql.Composed) -> list[Any]:
        with psycopg.connect(host=str(self._folder), user=USER, dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def database(self, *, empty: bool = False) -> Iterator[str]:
        """The name of a database with the store's tables and no row, or without any tables."""
        name = self._emptied.pop() if self._emptied and not empty else self._made(_EMPTY if empty else _MIGRATED)
        try:
            yield name
        finally:
            if empty:
                self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
            else:
                self._clear(name)
                self._emptied.append(name)

    def _made(self, template: str) -> str:
        """The name of a new database, which takes a quarter of a second of the processor."""
        name = f"test_{next(self._numbers)}"
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self.execute(made.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def _clear(self, database: str) -> None:
        """Remove every row, and the sessions and locks of others."""
        end = sql.SQL("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}")
        self.execute(end.format(sql.Literal(database)))
        deletes = [sql.SQL("DELETE FROM {};").format(sql.Identifier(table)) for table in metadata.tables]
        # Neither triggers nor references between the tables hold for a replica.
        self._execute(database, sql.SQL("SET session_replication_role = replica;") + sql.Composed(deletes))

    def copy(self, database: str, to: str) -> None:
        """What an operator does: `pg_dump`, and `psql` into a database without tables."""
        place = ("-h", str(self._folder), "-U", USER)
        dump = subprocess.run([self._programs / "pg_dump", *place, database], check=True, stdout=subprocess.PIPE)
        restore = (self._programs / "psql", *place, "-qX", "--set=ON_ERROR_STOP=1", "-o", os.devnull, to)
        subprocess.run(restore, check=True, input=dump.stdout)

    def end_sessions(self, database: str) -> int:
        """Of all programs; how many there were. PostgreSQL's own workers, such as autovacuum's, do not count."""
        ended = sql.SQL(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = {} AND backend_type = 'client backend'"
        )
        return len(self.execute(ended.format(sql.Literal(database))))

    def end_lock_holder(self, database: str) -> None:
        """End the session that holds the server's lock, and wait until it has gone."""
        holders = sql.SQL(
            "SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
            " WHERE locktype = 'advisory' AND granted AND datname = {}"
        ).format(sql.Literal(database))
        ((pid,),) = self.execute(holders)
        self.execute(sql.SQL("SELECT pg_terminate_backend({}, 5000)").format(sql.Literal(pid)))

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended: {(self._folder / 'log').read_text()}")
        try:
            self.execute(sql.SQL("SELECT 1"))
        except psycopg.OperationalError:
            return False
        return True


@contextlib.contextmanager
def running_postgres(network: str = "") -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="fractune-pg-") as folder:
        server = Postgres(Path(folder), network)
        try:
            yield server
        finally:
            server.stop()


def _programs() -> Path:
    """The folder of `initdb` and `postgres`, which Debian keeps off the PATH, by version."""
    of_path = shutil.which("initdb")
    of_debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: int(each.parts[-3]))
    found = [*of_debian, *([Path(of_path)] if of_path else [])]
    if not found:
        pytest.skip("no PostgreSQL here (initdb); apt-get install postgresql")
    return found[-1].resolve().parent


def _as_user(folder: Path) -> dict[str, Any]:
    """How to start a program that writes to `folder` as a user that PostgreSQL runs as, which root is not."""
    if os.getuid() != 0:
        return {"cwd": folder}
    nobody = pwd.getpwnam("nobody")
    user: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    if subprocess.run(["test", "-w", folder], check=False, **user).returncode:
        pytest.skip(
            f"root runs no PostgreSQL, and {nobody.pw_name} cannot reach {folder}; set TMPDIR to another folder"
        )
    return {"cwd": folder, **user}
