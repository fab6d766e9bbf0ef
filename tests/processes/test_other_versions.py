"""A fleet that is upgraded one part after the other: workers of an older version, and a server that is replaced."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fractune_core.fleet.redis_names import COMPILE_QUEUE, PROTOCOL, SERVER_STREAM
from fractune_core.fleet.redis_state import worker_key
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.transport.work_queues import WorkQueues
from tests.integration.test_server_losses import fresh, measured_once_at_both_shares
from tests.processes.test_refused_work import ingest
from tests.support.processes.cli_process import start_fractune, stopped_at_end
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.older_worker import VERSION, start_older
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.processes.server_process import Client, running_server
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)
NAME = "compile-older"
LINE = (
    rf"fractune: this worker \(fractune {re.escape(VERSION)}\) speaks protocol {PROTOCOL - 1}, its server {PROTOCOL}; "
    "install the same version of fractune for both"
)


@pytest.fixture
def url() -> Iterator[str]:
    with running_redis() as found:
        yield found


def older(url: str, protocol: int = PROTOCOL - 1) -> subprocess.Popen[str]:
    options = ("--role", "compile", "--redis", url, "--name", NAME)
    return start_older(protocol, "worker", *options, env={"FRACTUNE_SECRET": SECRET.decode()})


def refusal(process: subprocess.Popen[str]) -> str:
    """The last line of a worker that must end by itself with code 2."""
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


def test_an_older_worker_does_not_start_beside_a_newer_server(url: str, tmp_path: Path) -> None:
    with running_server(url, tmp_path / "state"):
        assert re.fullmatch(LINE, refusal(older(url)))


@pytest.mark.long
def test_an_older_worker_ends_when_a_newer_server_comes_and_takes_none_of_its_work(url: str, tmp_path: Path) -> None:
    with redis.Redis.from_url(url) as connection, stopped_at_end(older(url)) as process:
        wait_until(lambda: connection.exists(worker_key(NAME)) or process.poll() is not None, 60)
        wait_until(lambda: connection.hget(f"rq:worker:{NAME}", "state") == b"idle" or process.poll() is not None, 60)
        WorkQueues(connection, SECRET).enqueue(COMPILE_QUEUE, ingest("j"))
        with simulated_fleet(url) as fleet:
            fleet.remove("compile-1")
            with running_server(url, tmp_path / "state") as server, server.client() as client:
                assert re.fullmatch(LINE, refusal(process))
                name = client.create(client.upload(fresh()), trials=4, round_size=4).name
                client.wait(name, lambda job: any("role compile" in note for note in job.notes))
                assert events_of(connection, SERVER_STREAM) == []
                fleet.add("compile", "compile-2")
                assert client.finish(name).state == pb.JOB_STATE_DONE


def test_a_worker_of_another_version_and_the_same_protocol_works(url: str) -> None:
    with redis.Redis.from_url(url) as connection, stopped_at_end(older(url, PROTOCOL)):
        WorkQueues(connection, SECRET).enqueue(COMPILE_QUEUE, ingest("j"))
        wait_until(lambda: events_of(connection, SERVER_STREAM), 60)
        (event,) = events_of(connection, SERVER_STREAM)
        assert (event["job"], event["error"]) == ("j", "NotFound")


@pytest.mark.long
def test_a_server_is_replaced_under_running_workers_and_a_watcher(url: str, tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 's'}"
    with contextlib.ExitStack() as running:
        running.enter_context(simulated_fleet(url))
        server = running.enter_context(running_server(url, tmp_path / "state", listen=address))
        client = running.enter_context(Client(address))
        name = client.create(client.upload(fresh()), trials=60, round_size=6).name
        watcher = running.enter_context(stopped_at_end(start_fractune("watch", name, "--server", address, "--json")))
        client.wait(name, lambda job: job.progress.candidates_done >= 12)
        assert server.stop() == 0
        running.enter_context(running_server(url, tmp_path / "state", listen=address))
        with Client(address) as newer:
            job = newer.finish(name, 120)
            assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
            assert measured_once_at_both_shares(newer, name, 60)
        _, said = watcher.communicate(timeout=60)
        assert (watcher.returncode, said) == (0, "")
