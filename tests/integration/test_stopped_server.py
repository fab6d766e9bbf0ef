"""A server that stood still while another one took over, as on a host that was suspended, pays for nothing twice.

It is stopped at the worst moments. The fleet is simulated.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.fleet.redis_names import RECORDER, tuner_stream
from fractune_server.transport.work_queues import WorkQueues
from tests.integration.test_second_server import begin_job, ends_with_its_budget_spent_once
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.postgres_process import Postgres
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import ServerProcess
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)
TUNER = "tune-1"


@dataclass
class Pair:
    """Two servers on one PostgreSQL, and their fleet."""

    postgres: Postgres
    database: str
    first: ServerProcess
    second: ServerProcess
    fleet: SimulatedFleet
    redis: redis.Redis

    def replace_first(self) -> None:
        """It stops where it was told to; the second takes over, and stands still too."""
        self.first.wait_until_stopped()
        self.postgres.end_lock_holder(self.database)
        self.second.wait_ready()
        wait_until(lambda: waits_for_results(self.redis))  # those before are in
        self.second.process.send_signal(signal.SIGSTOP)
        self.second.wait_until_stopped()
        # What it had asked of Redis is answered.
        wait_until(lambda: not waits_for_results(self.redis))

    def wake_first(self) -> None:
        self.first.process.send_signal(signal.SIGCONT)
        assert self.first.process.wait(30) == 7

    def wake_second(self, job: str) -> None:
        """It ends the job, for which each candidate was measured once at each share, whatever became of its result."""
        self.second.process.send_signal(signal.SIGCONT)
        assert ends_with_its_budget_spent_once(self.second, job)
        trials = [each for worker in self.fleet.measurers() for each in worker.measured if each[0] == "trial"]
        assert len(trials) == len(set(trials)) == 120


def waits_for_results(connection: redis.Redis) -> bool:
    """Whether a server waits for results; workers that wait for work do not count."""
    clients: Any = connection.client_list()
    return any("b" in client["flags"] and client["cmd"] == "xreadgroup" for client in clients)


def recorder_of(connection: redis.Redis) -> Any:
    """How far the servers have read what the measurers have sent."""
    groups: Any = connection.xinfo_groups(tuner_stream(TUNER))
    return next(group for group in groups if group["name"] == RECORDER.encode())


@contextmanager
def pair_in_mid_job(postgres: Postgres, state: Path, stops_before: str) -> Iterator[tuple[Pair, str]]:
    """With the job, whose measurers hold."""
    with (
        postgres.database(empty=True) as name,
        running_redis() as url,
        redis.Redis.from_url(url) as connection,
        simulated_fleet(url) as fleet,
    ):
        options: Any = {"database_url": postgres.url(name), "listen": "127.0.0.1:0"}
        first = ServerProcess(url, state, stops_before=stops_before, **options)
        second = ServerProcess(url, state, waits=True, **options)
        try:
            fleet.hold_measurers_after(16)
            job = begin_job(first)
            fleet.wait_until_measurers_hold()
            yield Pair(postgres, name, first, second, fleet, connection), job
        finally:
            for server in (first, second):
                if server.process.poll() is None:
                    server.kill()


@pytest.mark.long
def test_results_that_it_took_and_cannot_commit_come_to_the_other_one(postgres: Postgres, tmp_path: Path) -> None:
    place = "fractune_server.transport.recorder:Recorder._read >"
    with pair_in_mid_job(postgres, tmp_path / "state", place) as (both, job):
        both.first.stop_where_told()
        both.replace_first()
        both.fleet.release_measurers()
        wait_until(lambda: recorder_of(both.redis)["lag"] > 0)
        both.wake_first()
        assert recorder_of(both.redis)["pending"] > 0  # nobody has recorded them
        both.wake_second(job)


def test_it_hands_out_nothing_any_more(postgres: Postgres, tmp_path: Path) -> None:
    place = "fractune_server.scheduler.fair_queue:FairQueue.charge"  # the round is stored
    with pair_in_mid_job(postgres, tmp_path / "state", place) as (both, job):
        both.first.stop_where_told()
        both.fleet.release_measurers()
        both.replace_first()
        queues, searches = WorkQueues(both.redis, SECRET), both.fleet.workers[TUNER].handled
        wait_until(queues.idle)
        before = len(searches)
        both.wake_first()
        assert queues.idle()
        assert len(searches) == before
        both.wake_second(job)


@pytest.mark.long
def test_nobody_begins_what_it_hands_out_all_the_same(postgres: Postgres, tmp_path: Path) -> None:
    place = "fractune_server.transport.work_queues:WorkQueues.enqueue"
    with pair_in_mid_job(postgres, tmp_path / "state", place) as (both, job):
        both.first.stop_where_told()
        both.fleet.release_measurers()
        both.replace_first()
        wait_until(WorkQueues(both.redis, SECRET).idle)
        searches, built = both.fleet.workers[TUNER].handled, both.fleet.workers["build-1"].built
        before, built_before = len(searches), len(built)
        both.wake_first()
        wait_until(lambda: len(searches) > before and WorkQueues(both.redis, SECRET).idle())
        assert len(built) == built_before
        both.wake_second(job)
