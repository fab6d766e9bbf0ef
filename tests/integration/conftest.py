"""A server with a simulated fleet, one for each file of tests; a file may have a fleet of its own."""

from collections.abc import Iterator

import pytest

from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.server_process import Client, ServerProcess, running_server


@pytest.fixture(scope="module")
def fleet(redis_url: str) -> Iterator[SimulatedFleet]:
    with simulated_fleet(redis_url) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def server(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(redis_url, tmp_path_factory.mktemp("here") / "state") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess, fleet: SimulatedFleet) -> Iterator[Client]:
    assert fleet.workers
    with server.client() as client:
        yield client
