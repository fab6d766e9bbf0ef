"""A slow and a cut network between real processes; the one that carries nothing says nothing either."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import redis

from fractune_core.access import CLIENT_KEEPALIVE, SERVER_KEEPALIVE
from fractune_core.fleet.redis_names import COMPILE_QUEUE, SERVER_STREAM
from fractune_core.fleet.redis_state import worker_key
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.services.jobs import MAX_WATCHERS
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.entry import ANSWER_TIMEOUT_S
from tests.integration.test_server_losses import fresh, measured_once_at_both_shares
from tests.processes.test_refused_work import ingest
from tests.support.processes.cli_process import Started, start_fractune, stopped_at_end
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.network import Network, network_to_redis
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.processes.server_process import Client, as_call, running_server
from tests.support.processes.worker_processes import worker
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)
ROUND_TRIP_S = 0.2
AWAY_S = 4.0
RECONNECT_S = 15.0
_BEGUN_TOGETHER = 100
CUT_OR_SWALLOWED = ["cut", pytest.param("swallowed", marks=pytest.mark.long)]


def noticed_s(keepalive: tuple[tuple[str, int], ...]) -> float:
    """By when an end of a connection knows that the other one is gone."""
    options = dict(keepalive)
    return (options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"]) / 1000


def away_for_a_while(network: Network, how: str) -> None:
    began = time.monotonic()
    network.cut() if how == "cut" else network.swallow()
    wait_until(lambda: time.monotonic() - began > AWAY_S)
    network.mend()


@pytest.mark.long
@pytest.mark.parametrize(
    ("link", "ill"),
    [
        pytest.param(link, ill, marks=[] if (link, ill) == ("server", "cut") else pytest.mark.long)
        for link in ("server", "workers")
        for ill in ("slow", "cut", "swallowed")
    ],
)
def test_a_job_goes_on_over_a_bad_network_to_redis(tmp_path: Path, link: str, ill: str) -> None:
    with running_redis() as url, network_to_redis(url) as (network, far):
        near_or_far = {"server": (far, url), "workers": (url, far)}[link]
        with (
            simulated_fleet(near_or_far[1]),
            running_server(near_or_far[0], tmp_path / "state") as server,
            server.client() as client,
        ):
            name = client.create(client.upload(fresh()), trials=24, round_size=6).name
            client.wait(name, lambda job: job.progress.candidates_done >= 6)
            if ill == "slow":
                network.delay(ROUND_TRIP_S / 2)
            else:
                away_for_a_while(network, ill)
            job = client.finish(name, 150)
            assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
            assert measured_once_at_both_shares(client, name, 24)


@pytest.mark.long
@pytest.mark.parametrize("ill", CUT_OR_SWALLOWED)
def test_a_worker_that_waits_for_work_finds_its_way_back(tmp_path: Path, ill: str) -> None:
    with (
        running_redis() as url,
        network_to_redis(url) as (network, far),
        redis.Redis.from_url(url) as connection,
        worker("compile-far", "compile", far, tmp_path / "gate") as process,
    ):
        process.info(connection)
        wait_until(lambda: connection.hget("rq:worker:compile-far", "state") == b"idle", 60)
        key = worker_key("compile-far")
        network.cut() if ill == "cut" else network.swallow()
        wait_until(lambda: not connection.exists(key))
        network.mend()
        wait_until(lambda: connection.exists(key), 20)  # it says that it lives before it has asked for work again
        WorkQueues(connection, SECRET).enqueue(COMPILE_QUEUE, ingest("j"))
        wait_until(lambda: events_of(connection, SERVER_STREAM), ANSWER_TIMEOUT_S + 15)
        assert process.process.poll() is None


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[tuple[Network, Client, SimulatedFleet, Started, str]]:
    """A job that waits for its builder, and a command that watches it through a network."""
    with running_redis() as url, simulated_fleet(url) as fleet, running_server(url, folder / "state") as server:
        fleet.workers["build-1"].hold.set()
        with server.client() as client, Network(server.address) as network:
            network.delay(ROUND_TRIP_S / 2)
            name = client.create(client.upload(fresh()), trials=12, round_size=6).name
            client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING)
            command = ("watch", name, "--reconnect-s", str(RECONNECT_S), "--server")
            with stopped_at_end(start_fractune(*command, network.address)) as watcher:
                assert watcher.stdout is not None
                assert name.removeprefix("jobs/") in watcher.stdout.readline()
                yield network, client, fleet, watcher, name


@pytest.mark.long
@pytest.mark.parametrize("ill", CUT_OR_SWALLOWED)
def test_a_watcher_goes_on_after_the_network_was_away(tmp_path: Path, ill: str) -> None:
    with watched(tmp_path) as (network, client, fleet, watcher, name):
        away_for_a_while(network, ill)
        fleet.workers["build-1"].hold.clear()
        assert client.finish(name).state == pb.JOB_STATE_DONE
        shown, said = watcher.communicate(timeout=noticed_s(CLIENT_KEEPALIVE) + RECONNECT_S + 15)
        assert watcher.returncode == 0
        assert all(line.startswith("waiting for the server at ") for line in said.splitlines())
        assert "done" in shown


@pytest.mark.long
@pytest.mark.parametrize("ill", ["cut", "swallowed"])
def test_a_watcher_of_a_network_that_stays_away_ends_in_one_line(tmp_path: Path, ill: str) -> None:
    with watched(tmp_path) as (network, _, _, watcher, _):
        network.cut() if ill == "cut" else network.swallow()
        _, said = watcher.communicate(timeout=noticed_s(CLIENT_KEEPALIVE) + RECONNECT_S + 30)
        assert watcher.returncode == 5
        *waits, last = said.splitlines(keepends=True)
        assert all(line.startswith("waiting for the server at ") for line in waits)
        assert last == (
            f"fractune: no fractune server answers at {network.address}; start one with 'fractune up', or check "
            "the address\n"
        )


@pytest.mark.long
def test_watchers_that_are_gone_without_a_word_give_their_places_back(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet, running_server(url, tmp_path / "state") as server:
        fleet.workers["build-1"].hold.set()
        with server.client() as client, Network(server.address) as network, Client(network.address) as far:
            request = pb.WatchJobRequest(name=client.create(client.upload(fresh()), trials=4).name)
            watches = []
            for _ in range(MAX_WATCHERS // _BEGUN_TOGETHER):  # gRPC cancels what no server takes up within 30 s
                begun = [far.jobs.WatchJob(request) for _ in range(_BEGUN_TOGETHER)]
                for each in begun:
                    next(each)
                watches += begun
            with pytest.raises(grpc.RpcError) as full:
                next(client.jobs.WatchJob(request))
            assert as_call(full.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            network.swallow()

            def has_place() -> bool:
                watch = client.jobs.WatchJob(request)
                try:
                    return bool(next(watch).name)
                except grpc.RpcError:
                    return False
                finally:
                    watch.cancel()

            wait_until(has_place, noticed_s(SERVER_KEEPALIVE) + 20, every_s=0.5)
            for each in watches:
                each.cancel()
