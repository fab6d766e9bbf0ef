"""What dies in mid-job, and how the job goes on: server, workers, Redis. The fleet is simulated."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import redis

from fractune.local.embedded_redis import redis_command
from fractune_core.fleet.redis_names import BUILD_QUEUE, tune_queue
from fractune_core.fleet.redis_state import worker_key
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Status
from fractune_server.admin import back_up, restore
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.ready_made import ReadyMade
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import (
    Client,
    ServerProcess,
    as_call,
    model_bytes,
    running_server,
    simulated_stack,
)


def fresh(operators: int = 3) -> bytes:
    mark = uuid.uuid4().hex[:6]
    return model_bytes(*((f"op{index}_{mark}", index + 1) for index in range(operators)))


def trials_of(client: Client, job: str) -> list[pb.Record]:
    chosen = pb.RecordFilter(job=job, kind="trial")
    return list(client.log.ListRecords(pb.ListRecordsRequest(filter=chosen, page_size=1000)).records)


def measured_once_at_both_shares(client: Client, job: str, count: int) -> bool:
    """Exactly `count` candidates, each with one trial at each of the two shares."""
    pairs = Counter((record.candidate_id, record.granted.share) for record in trials_of(client, job))
    return len(pairs) == 2 * count and set(pairs.values()) == {1}


def measured_once_but_for_losses(client: Client, job: str) -> int:
    """How many candidates have trials: one at each of the two shares. What cannot be built fails at every share by the
    record of one; the other may have been under way, and lost.
    """
    trials = trials_of(client, job)
    pairs = Counter((record.candidate_id, record.granted.share) for record in trials)
    assert set(pairs.values()) == {1}
    built = {record.candidate_id for record in trials if record.status != Status.BUILD_FAILED}
    assert len([name for name, _ in pairs if name in built]) == 2 * len(built)
    return len({name for name, _ in pairs})


def test_server_killed_in_mid_job_goes_on_without_paying_twice(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url):
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            name = client.create(client.upload(fresh()), trials=60, round_size=6).name
            client.wait(name, lambda job: job.progress.candidates_done >= 12)
            server.kill()
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            job = client.finish(name)
            assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
            assert job.progress.candidates_done == 60
            assert measured_once_at_both_shares(client, name, 60)


def turns_of(server: ServerProcess) -> float:
    """How many turns its engine has taken."""
    place = re.search(r"metrics at (http://\S+/metrics)", server.said())
    assert place
    with urllib.request.urlopen(place[1], timeout=10) as answer:  # noqa: S310  our own server's
        count = re.search(r"^fractune_engine_turn_seconds_count (\S+)$", answer.read().decode(), re.MULTILINE)
    assert count
    return float(count[1])


def test_a_server_that_is_started_again_waits_for_what_is_under_way(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet:
        measurers = fleet.measurers()
        with running_server(url, tmp_path / "state", metrics="127.0.0.1:0") as server, server.client() as client:
            model = client.upload(fresh(operators=1))
            client.finish(client.create(model, trials=6).name)
            for measurer in measurers:
                measurer.hold.set()
            name = client.create(model, trials=12).name  # what it lacks is one round
            wait_until(lambda: sum(kind == "trial" for kind, _ in set(fleet.workers["build-1"].built)) == 12)
            turns = turns_of(server)
            wait_until(lambda: turns_of(server) >= turns + 2)  # it has stored what it had handed out
            server.kill()
        with running_server(url, tmp_path / "state", metrics="127.0.0.1:0") as server, server.client() as client:
            wait_until(lambda: turns_of(server) >= 5)
            for measurer in measurers:
                measurer.hold.clear()
            assert client.finish(name).progress.candidates_done == 6
            assert measured_once_at_both_shares(client, name, 6)
            # A search that began again would propose the same candidates: the log has them once, but they cost twice.
            trials = [candidate for kind, candidate in fleet.workers["build-1"].built if kind == "trial"]
            assert len(trials) == len(set(trials)) == 12


NOT_HANDED_OUT = "was not handed out; another one takes its place"
STORES = "fractune_server.store.jobs:JobStore.save_round"
HANDS_OUT = f"fractune_server.transport.work_queues:WorkQueues.enqueue {tune_queue('tune-1')}"


def stop_before_its_last_round(server: ServerProcess, client: Client, fleet: SimulatedFleet) -> str:
    """A job whose one round of 6 trials the server, told where to stop, is about to hand out, and stands still."""
    model = client.upload(fresh(operators=1))
    client.finish(client.create(model, trials=6).name)
    fleet.remove("tune-1")
    name = client.create(model, trials=12).name
    client.wait(name, lambda job: any("role tune" in note for note in job.notes))  # the server knows that it has none
    server.stop_where_told()
    fleet.add("tune", "tune-1")
    server.wait_until_stopped()
    return name


@pytest.mark.long
@pytest.mark.parametrize("place", [STORES, HANDS_OUT])
def test_a_server_killed_as_it_hands_out_the_last_round_pays_for_no_other(tmp_path: Path, place: str) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet:
        with running_server(url, tmp_path / "state", stops_before=place) as server, server.client() as client:
            name = stop_before_its_last_round(server, client, fleet)
            server.kill()
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            assert client.finish(name).progress.candidates_done == 6
            assert measured_once_at_both_shares(client, name, 6)
            assert (NOT_HANDED_OUT in server.said()) == (place == HANDS_OUT)


@pytest.mark.long
def test_a_round_that_redis_did_not_take_is_handed_out_when_it_is_back(tmp_path: Path) -> None:
    with stoppable_redis() as broker, simulated_fleet(broker.url) as fleet:
        state = tmp_path / "state"
        with running_server(broker.url, state, stops_before=HANDS_OUT) as server, server.client() as client:
            name = stop_before_its_last_round(server, client, fleet)
            broker.kill()
            server.process.send_signal(signal.SIGCONT)
            wait_until(lambda: "Redis is not usable" in server.said())
            broker.come_back(empty=False)
            assert client.finish(name).progress.candidates_done == 6
            assert measured_once_at_both_shares(client, name, 6)
            assert NOT_HANDED_OUT in server.said()


@pytest.mark.long
def test_a_server_on_a_full_disk_ends_in_one_line_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_redis() as url, simulated_fleet(url) as fleet:
        fleet.hold_measurers_after(16)
        with running_server(url, state) as server, server.client() as client:
            model = client.upload(fresh())
            name = client.create(model, trials=60, round_size=6).name
            fleet.wait_until_measurers_hold()
            server.kill()
        fleet.release_measurers()
        full = max(file.stat().st_size for file in state.glob("fractune.db*")) + 4096
        with running_server(url, state, file_limit_bytes=full) as server:
            assert server.process.wait(60) == 7
            last = server.said().splitlines()[-1]
            assert last.startswith(f"fractune: database {state / 'fractune.db'}: ")
            assert last.endswith("free some space on that disk, then start again; nothing committed is lost")
            assert "Traceback" not in server.said()
        with running_server(url, state) as server, server.client() as client:
            assert client.finish(name).state == pb.JOB_STATE_DONE
            assert measured_once_at_both_shares(client, name, 60)


@pytest.mark.long
def test_a_backup_taken_in_mid_job_is_restored_elsewhere_and_its_job_goes_on(tmp_path: Path) -> None:
    with simulated_stack(tmp_path / "state") as (_, fleet, _, client):
        fleet.workers["measure-2"].hold_after = 16
        name = client.create(client.upload(fresh()), trials=40, round_size=4).name
        client.wait(name, lambda job: job.progress.candidates_done >= 8)
        found = back_up(tmp_path / "state", tmp_path / "backup.tar")
    assert (found.jobs, found.files) == (1, 1)
    assert found.records >= 16
    restore(tmp_path / "backup.tar", tmp_path / "new")
    with (
        running_redis() as another,  # which knows of nothing
        simulated_fleet(another),
        running_server(another, tmp_path / "new") as server,
        server.client() as client,
    ):
        job = client.finish(name)
        assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
        assert job.progress.candidates_done >= 40
        assert measured_once_but_for_losses(client, name) == job.progress.candidates_done


@pytest.mark.long
def test_without_resume_open_jobs_end_as_cancelled(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet:
        fleet.workers["build-1"].hold.set()
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            name = client.create(client.upload(fresh()), trials=10).name
            client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING)
            server.kill()
        with running_server(url, tmp_path / "state", resume=False) as server, server.client() as client:
            job = client.job(name)
            assert job.state == pb.JOB_STATE_CANCELLED
            assert job.message == "interrupted: its stack ended; run the same command to continue"
            fleet.workers["build-1"].hold.clear()
            again = client.finish(client.create(job.spec.model, trials=10).name)
            assert again.state == pb.JOB_STATE_DONE


@contextmanager
def held_worker(url: str, role: str) -> Iterator[str]:
    """A worker process that takes work and never does it; killed at the end."""
    name = f"{role}-held"
    process = ReadyMade("tests.support.processes.fleet_simulated", url, role, name, env={**os.environ, "HOLD": "1"})
    try:
        with redis.Redis.from_url(url) as connection:
            wait_until(lambda: connection.exists(worker_key(name)))
        yield name
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_tuner_instance_killed_before_it_proposed(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet:
        fleet.remove("tune-1")
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            with held_worker(url, "tune") as held:
                name = client.create(client.upload(fresh()), trials=12, round_size=4).name
                client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING)
                with redis.Redis.from_url(url) as connection:
                    wait_until(lambda: connection.zcard(f"rq:wip:{tune_queue(held)}"))
            fleet.add("tune", "tune-2")
            job = client.finish(name)
            assert job.state == pb.JOB_STATE_DONE
            assert measured_once_at_both_shares(client, name, 12)
            assert all(work.opening.history == [] for work in fleet.workers["tune-2"].handled[:1])


@pytest.mark.long
def test_a_search_that_its_instance_has_forgotten_begins_there_with_what_the_log_holds(tmp_path: Path) -> None:
    with simulated_stack(tmp_path / "state") as (_, fleet, _, client):
        tuner = fleet.workers["tune-1"]
        tuner.forgetful = True
        model = fresh(operators=1)
        name = client.create(client.upload(model), trials=24, round_size=4).name
        job = client.finish(name)
        assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
        assert job.progress.candidates_done == 24
        assert measured_once_at_both_shares(client, name, 24)
        known = [len(work.opening.known) for work in tuner.handled if work.opening]
        assert known == sorted(known)
        assert len([work for work in tuner.handled if work.opening is None]) >= 4  # more than failures are allowed


def test_builder_killed_with_work_in_its_hands(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet:
        fleet.remove("build-1")
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            with held_worker(url, "build"):
                name = client.create(client.upload(fresh()), trials=12, round_size=4).name
                with redis.Redis.from_url(url) as connection:
                    wait_until(lambda: connection.zcard(f"rq:wip:{BUILD_QUEUE}"))
            with redis.Redis.from_url(url) as connection:
                connection.delete(worker_key("build-held"))  # as it expires
            fleet.add("build", "build-2")
            job = client.finish(name)
            assert job.state == pb.JOB_STATE_DONE
            assert measured_once_at_both_shares(client, name, 12)


class StoppableRedis:
    """A Redis on a fixed socket that can go and come back, with or without what it held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder / 'redis.sock'}"
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            redis_command(self._folder / "redis.sock", self._folder),
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis.from_url(self.url, retry=None) as connection:
            wait_until(lambda: _answers(connection))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def come_back(self, *, empty: bool) -> None:
        if empty:
            shutil.rmtree(self._folder / "appendonlydir")
        self._start()


def _answers(connection: redis.Redis) -> bool:
    try:
        return bool(connection.ping())
    except redis.ConnectionError:
        return False


@contextmanager
def stoppable_redis() -> Iterator[StoppableRedis]:
    with tempfile.TemporaryDirectory(prefix="fractune-redis-") as folder:
        broker = StoppableRedis(Path(folder))
        try:
            yield broker
        finally:
            broker.kill()


@pytest.mark.parametrize("empty", [False, pytest.param(True, marks=pytest.mark.long)])
def test_redis_killed_in_mid_job_comes_back(tmp_path: Path, empty: bool) -> None:  # noqa: FBT001
    with (
        stoppable_redis() as broker,
        simulated_fleet(broker.url),
        running_server(broker.url, tmp_path / "state") as server,
        server.client() as client,
    ):
        name = client.create(client.upload(fresh()), trials=40, round_size=4).name
        client.wait(name, lambda job: job.progress.candidates_done >= 8)
        broker.kill()
        with pytest.raises(grpc.RpcError) as caught:
            client.fleet.ListWorkers(pb.ListWorkersRequest())
        error = as_call(caught.value)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata() or ())["fractune-error"] == "RedisGone"
        broker.come_back(empty=empty)
        job = client.finish(name, timeout_s=90)
        assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
        assert measured_once_but_for_losses(client, name) >= 40
