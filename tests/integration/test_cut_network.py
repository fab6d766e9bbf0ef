"""Two servers on one PostgreSQL, each over a network of its own, and one of these is cut. The fleet is simulated."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_second_server import TAKE_OVER_S, begin_job, ends_with_its_budget_spent_once
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.networks import Network
from tests.support.processes.postgres_process import Postgres, running_postgres
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import ServerProcess


@pytest.fixture
def networks() -> Iterator[tuple[Network, Network, Network]]:
    """Of the first server, of the second one, and of the database."""
    with contextlib.ExitStack() as held:
        first, second, database = (held.enter_context(contextlib.closing(Network())) for _ in range(3))
        first.connect(database, 1)
        second.connect(database, 2)
        yield first, second, database


@pytest.fixture
def postgres(networks: tuple[Network, Network, Network]) -> Iterator[Postgres]:
    with contextlib.ExitStack() as held:
        with networks[2]:
            server = held.enter_context(running_postgres("10.99.0.0/16"))
        yield server


@pytest.mark.long
def test_a_second_server_takes_over_when_the_first_one_s_network_is_cut(
    networks: tuple[Network, Network, Network], postgres: Postgres
) -> None:
    with (
        postgres.database(empty=True) as name,
        running_redis() as redis_url,
        simulated_fleet(redis_url),
        tempfile.TemporaryDirectory(prefix="fractune-") as folder,  # a Unix socket's path must be short
    ):

        def start(number: int, *, waits: bool) -> ServerProcess:
            options = {
                "listen": f"unix:{folder}/{number}",  # what lies in files is the same in all networks
                "database_url": f"postgresql://fractune@10.99.{number}.1/{name}",
            }
            with networks[number - 1]:
                return ServerProcess(redis_url, Path(folder) / "state", waits=waits, **options)

        first = start(1, waits=False)
        second = start(2, waits=True)
        try:
            wait_until(lambda: "another server works on" in second.said())
            job = begin_job(first)
            cut_at = time.monotonic()
            networks[0].cut(1)
            second.wait_ready()
            assert time.monotonic() - cut_at < TAKE_OVER_S
            assert first.process.wait(30) == 7
            # Whichever of its connections has noticed first says so, or that it cannot be made anew.
            last = first.said().splitlines()[-1]
            assert last.startswith(f"fractune: database postgresql://fractune@10.99.1.1/{name}: "), last
            assert ends_with_its_budget_spent_once(second, job)
        finally:
            for server in (first, second):
                if server.process.poll() is None:
                    server.stop()
