"""Commands whose server goes away, a disk that is full, and a Redis that is killed."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fractune.local.embedded_redis import redis_answers, redis_command
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.cli_process import (
    error_line,
    only_line,
    run_fractune,
    start_fractune,
    stopped_at_end,
    write_model,
)
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import model_bytes, running_server


@pytest.mark.long
def test_commands_wait_for_their_server_say_so_and_go_on(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet, contextlib.ExitStack() as commands:
        fleet.workers["build-1"].hold.set()
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            name = client.create(client.upload(model_bytes(("conv2d", 1))), trials=2).name
            client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING)
            to_server = ("watch", name, "--server", server.address)
            patient, as_json, impatient = (
                commands.enter_context(stopped_at_end(start_fractune(*to_server, *more)))
                for more in ((), ("--json",), ("--reconnect-s", "0.5"))
            )
            for each in (patient, as_json, impatient):
                assert each.stdout is not None
                assert name in each.stdout.readline()
            address = server.address
            server.kill()
        _, said = impatient.communicate(timeout=60)
        assert impatient.returncode == 5
        assert only_line(said).startswith(f"fractune: no fractune server answers at {address}; ")
        assert patient.stderr is not None
        assert patient.stderr.readline() == f"waiting for the server at {address}, which has been away for 5 s of 60\n"
        with running_server(url, tmp_path / "state", listen=address):
            fleet.workers["build-1"].hold.clear()
            shown, _ = patient.communicate(timeout=120)
            assert patient.returncode == 0
            assert "done" in shown
            told, said = as_json.communicate(timeout=120)
            assert (as_json.returncode, said) == (0, "")
    waiting = [event for event in map(json.loads, told.splitlines()) if event.get("event") == "waiting"]
    assert waiting
    assert waiting[0] == {"event": "waiting", "server": address, "away_s": waiting[0]["away_s"], "reconnect_s": 60.0}
    assert 5 <= waiting[0]["away_s"] < 10


Disk = Callable[[int], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Makes a disk of so many kilobytes; its folder."""
    with ExitStack() as mounted:

        def make(kilobytes: int) -> Path:
            folder = tmp_path / "disk"
            folder.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
            done = subprocess.run(mount, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no disk can be mounted here, which needs root: {done.stderr.strip()}")
            mounted.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            return folder

        yield make


@pytest.mark.parametrize("kilobytes", [100, pytest.param(600, marks=pytest.mark.long)])
def test_a_disk_that_is_full_is_named_as_the_cause(tmp_path: Path, disk: Disk, kilobytes: int) -> None:
    """The smaller one is full when Redis and the server have started, the larger one in mid-job."""
    model, state = write_model(tmp_path / "m.onnx"), disk(kilobytes) / "state"
    where = ("--state", str(state), "--out-dir", str(tmp_path), "--quiet")
    ended = run_fractune("tune", str(model), "--shares", "cpu:1", "--trials", "60", "--only", "conv2d", *where)
    assert ended.returncode == 7, ended.stderr
    said = f"state folder {state}: No space left on device; free space there, or pass --state with a writable folder"
    in_database = f"database {state / 'fractune.db'}: database or disk is full; free some space on that disk, then "
    assert error_line(ended).removeprefix("fractune: ").startswith((said, in_database))


KILLS = 20


class Writer:
    """Counts up in Redis for as long as it answers."""

    def __init__(self, socket: Path) -> None:
        self.answered = 0
        self._connection = redis.Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0))
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            while True:
                self.answered = int(self._connection.incr("count"))
        except redis.RedisError:
            self._connection.close()

    def join(self) -> int:
        """The last number that was answered, once Redis is gone."""
        self._thread.join()
        return self.answered


def test_what_redis_has_answered_survives_kill_minus_nine(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    answered = 0
    for _ in range(KILLS):
        process = subprocess.Popen(redis_command(socket, tmp_path), stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: redis_answers(socket))
            with redis.Redis(unix_socket_path=str(socket)) as connection:
                found = int(connection.get("count") or 0)
            assert found in (answered, answered + 1), "the last one may have been done without an answer"
            writer = Writer(socket)
            enough = found + 5
            wait_until(lambda least=enough, writer=writer: writer.answered >= least, every_s=0)
        finally:
            process.kill()
            process.wait()
        answered = writer.join()
