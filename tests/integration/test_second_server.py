"""Two servers on one PostgreSQL: one works, the other one waits and goes on in its place. The fleet is simulated."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fractune_core.pb import fractune_pb2 as pb
from tests.integration.test_server_losses import fresh, measured_once_at_both_shares, measured_once_but_for_losses
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.postgres_process import Postgres
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import ServerProcess, as_call

TAKE_OVER_S = 30.0
"""what is promised is ten seconds; other tests run beside these"""


@dataclass
class Place:
    """What servers share: Redis with a fleet, a database, and a folder for models and bundles."""

    postgres: Postgres
    database: str
    redis_url: str
    fleet: SimulatedFleet
    state: Path

    def begin_job(self, server: ServerProcess) -> str:
        """A job of 60 trials in the middle of it, whose measurers hold."""
        self.fleet.hold_measurers_after(16)
        name = begin_job(server)
        self.fleet.wait_until_measurers_hold()
        return name

    @contextmanager
    def server(self, *, waits: bool = False) -> Iterator[ServerProcess]:
        """With `waits` it comes back when the server says that it waits for another one."""
        server = ServerProcess(
            self.redis_url, self.state, waits=waits, database_url=self.postgres.url(self.database), listen="127.0.0.1:0"
        )
        try:
            if waits:
                wait_until(lambda: "another server works on database postgresql://" in server.said())
                assert not server.address
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> Iterator[Place]:
    with postgres.database(empty=True) as name, running_redis() as url, simulated_fleet(url) as fleet:
        yield Place(postgres, name, url, fleet, tmp_path / "state")


def begin_job(server: ServerProcess) -> str:
    """A job of 60 trials, in the middle of it."""
    with server.client() as client:
        name = client.create(client.upload(fresh()), trials=60, round_size=6).name
        client.wait(name, lambda job: job.progress.candidates_done >= 12)
    return name


def ends_with_its_budget_spent_once(server: ServerProcess, name: str) -> bool:
    with server.client() as client:
        job = client.finish(name)
        assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
        assert job.progress.candidates_done == 60
        return measured_once_at_both_shares(client, name, 60)


def test_a_second_server_takes_over_after_a_kill(place: Place) -> None:
    with place.server() as first, place.server(waits=True) as second:
        name = place.begin_job(first)
        killed_at = time.monotonic()
        first.kill()
        place.fleet.release_measurers()
        second.wait_ready()
        assert time.monotonic() - killed_at < TAKE_OVER_S
        assert ends_with_its_budget_spent_once(second, name)
        assert second.said().count("another server works on") == 1


@pytest.mark.long
def test_a_second_server_takes_over_after_an_orderly_end_too(place: Place) -> None:
    with place.server() as first, place.server(waits=True) as second:
        name = place.begin_job(first)
        assert first.stop() == 0
        place.fleet.release_measurers()
        second.wait_ready()
        assert ends_with_its_budget_spent_once(second, name)


@pytest.mark.long
def test_a_server_that_has_lost_the_lock_ends_and_the_other_goes_on(place: Place) -> None:
    with place.server() as first, place.server(waits=True) as second:
        name = place.begin_job(first)
        place.postgres.end_lock_holder(place.database)
        place.fleet.release_measurers()
        assert first.process.wait(30) == 7
        last = first.said().splitlines()[-1]
        assert last.startswith(f"fractune: database postgresql://fractune@/{place.database}")
        assert last.endswith("start it again: it continues, or waits for the server that has taken over")
        second.wait_ready()
        assert ends_with_its_budget_spent_once(second, name)


def test_a_server_that_waits_can_be_stopped(place: Place) -> None:
    with place.server(), place.server(waits=True) as second:
        assert second.stop() == 0


@pytest.mark.long
def test_a_killed_postgresql_ends_the_server_in_one_line_and_the_next_one_goes_on(place: Place) -> None:
    with place.server() as first:
        name = place.begin_job(first)
        place.postgres.stop()
        place.fleet.release_measurers()
        try:
            assert first.process.wait(30) == 7
            with place.server() as refused:
                assert refused.process.wait() == 7
        finally:
            place.postgres.start()
    assert "Traceback" not in first.said() + refused.said()
    assert refused.said().splitlines()[-1].endswith("start it, or check the address")
    with place.server() as again:
        assert ends_with_its_budget_spent_once(again, name)


def test_a_call_to_a_server_that_has_lost_the_lock_is_refused_or_finds_nobody(place: Place) -> None:
    with place.server() as server, server.client() as client:
        model = client.upload(fresh())
        place.postgres.end_lock_holder(place.database)
        with pytest.raises(grpc.RpcError) as error:
            client.create(model, trials=1)
        assert as_call(error.value).code() in {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE}
        server.process.wait(30)


@pytest.mark.long
def test_a_dump_taken_in_mid_job_is_restored_elsewhere_and_its_job_goes_on(place: Place, tmp_path: Path) -> None:
    with place.postgres.database(empty=True) as name:
        with place.server() as server:
            place.fleet.workers["measure-2"].hold_after = 16
            job = begin_job(server)
            wait_until(place.fleet.workers["measure-2"].hold.is_set)  # so the dump has a round in progress
            place.postgres.copy(place.database, to=name)
            shutil.copytree(place.state / "blobs", tmp_path / "new" / "blobs")
        with (
            running_redis() as another,  # which knows of nothing
            simulated_fleet(another) as fleet,
            Place(place.postgres, name, another, fleet, tmp_path / "new").server() as server,
            server.client() as client,
        ):
            found = client.finish(job)
            assert (found.state, found.message) == (pb.JOB_STATE_DONE, "")
            assert found.progress.candidates_done >= 60
            assert measured_once_but_for_losses(client, job) == found.progress.candidates_done
