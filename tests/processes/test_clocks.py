"""Clocks that are wrong, and clocks that are set while a fleet works. That of Redis is the right one."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.fleet.redis_names import COMPILE_QUEUE
from fractune_core.fleet.redis_state import worker_key
from fractune_core.fleet.signed_messages import seal_work
from fractune_core.pb import fractune_pb2 as pb
from tests.integration.test_server_losses import fresh, measured_once_at_both_shares
from tests.support.processes import fleet_simulated
from tests.support.processes.cli_process import stopped_at_end
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, running_server
from tests.support.processes.shifted_clock import start_shifted
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)
ENV = {"FRACTUNE_SECRET": SECRET.decode()}
WRONG = [("1", "1.00 h ahead of"), pytest.param("-24", "24.00 h behind", marks=pytest.mark.long)]


@pytest.fixture
def url() -> Iterator[str]:
    with running_redis() as found:
        yield found


def last_line(process: subprocess.Popen[str]) -> str:
    """Of a process that must end by itself with code 1, without a traceback."""
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


def server(hours: str, url: str, folder: Path) -> subprocess.Popen[str]:
    options = ("--listen", f"unix:{folder / 's'}", "--state", str(folder / "state"))
    return start_shifted(hours, "server", "--redis", url, *options, env=ENV)


def worker(hours: str, url: str, name: str = "compile-shifted") -> subprocess.Popen[str]:
    return start_shifted(hours, "worker", "--role", "compile", "--redis", url, "--name", name, env=ENV)


@pytest.mark.parametrize(("hours", "said"), WRONG)
def test_a_part_whose_clock_is_wrong_does_not_start(url: str, tmp_path: Path, hours: str, said: str) -> None:
    for who, process in (("worker", worker(hours, url)), ("server", server(hours, url, tmp_path))):
        line = last_line(process)
        assert line.startswith(f"fractune: the clock of this {who} is {said} that of Redis, and 0.5 h are allowed; set")
    with redis.Redis.from_url(url) as connection:  # neither has begun: a running one would end with the same line
        written = {f"cmdstat_{command}" for command in ("set", "mset", "sadd", "hset")}
        assert written.isdisjoint(connection.info("commandstats"))


@pytest.mark.long
@pytest.mark.parametrize(("hours", "said"), WRONG)
def test_a_worker_whose_clock_is_set_while_it_runs_ends_and_says_why(url: str, hours: str, said: str) -> None:
    process = worker(f"later {hours}", url)
    with stopped_at_end(process), redis.Redis.from_url(url) as connection:
        key = worker_key("compile-shifted")
        wait_until(lambda: connection.exists(key) or process.poll() is not None, 60)
        process.send_signal(signal.SIGUSR1)
        assert f"the clock of this worker is {said} that of Redis" in last_line(process)
        assert not connection.exists(key)


@pytest.mark.long
@pytest.mark.parametrize(("hours", "said"), WRONG)
def test_a_server_whose_clock_is_set_while_it_runs_ends_and_the_next_one_goes_on(
    url: str, tmp_path: Path, hours: str, said: str
) -> None:
    process = server(f"later {hours}", url, tmp_path)
    with stopped_at_end(process), simulated_fleet(url) as fleet:
        wait_until(lambda: (tmp_path / "s").exists() or process.poll() is not None, 60)
        with Client(f"unix:{tmp_path / 's'}") as client:
            fleet.hold_measurers_after(16)  # no phase ends before the server has noticed
            name = client.create(client.upload(fresh()), trials=40, round_size=4).name
            fleet.wait_until_measurers_hold()
            process.send_signal(signal.SIGUSR1)
            assert f"the clock of this server is {said} that of Redis" in last_line(process)
            fleet.release_measurers()
        with running_server(url, tmp_path / "state") as again, again.client() as client:
            job = client.finish(name, 120)
            assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
            assert job.progress.elapsed_s < 600
            assert measured_once_at_both_shares(client, name, 40)


@pytest.mark.long
def test_work_that_waited_while_all_clocks_were_set_back_is_asked_for_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on one machine, where Redis's clock is set too: what waits is of the future then, and no worker does it."""
    future = [24 * 3600.0] * 3

    def seal(secret: bytes, queue: str, work: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            ahead_s, real = future.pop() if future else 0.0, time.time
            patch.setattr("fractune_core.fleet.signed_messages.time.time", lambda: real() + ahead_s)
            return seal_work(secret, queue, work)

    monkeypatch.setattr(fleet_simulated, "seal_work", seal)
    with simulated_fleet(url), running_server(url, tmp_path / "state") as running, running.client() as client:
        name = client.create(client.upload(fresh()), trials=24, round_size=4).name
        job = client.finish(name, 120)
        assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
        assert future == []
        assert "24.0 h in the future; set the clocks" in running.said()
        assert measured_once_at_both_shares(client, name, 24)


def test_a_worker_whose_clock_was_set_back_keeps_its_work(url: str) -> None:
    """Within what is allowed: its work began before it did then, by the times that Redis holds."""
    process = worker("later -0.4", url)
    with stopped_at_end(process), redis.Redis.from_url(url) as connection:
        key = worker_key("compile-shifted")
        wait_until(lambda: connection.exists(key) or process.poll() is not None, 60)
        before = started_at(connection)
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: started_at(connection) < before - 1000)
        assert process.poll() is None
        assert not connection.llen(f"rq:queue:{COMPILE_QUEUE}")


def started_at(connection: redis.Redis) -> float:
    from fractune_core.fleet.signed_messages import open_worker

    entry: Any = connection.get(worker_key("compile-shifted"))
    return open_worker(SECRET, "compile-shifted", entry).started_at
