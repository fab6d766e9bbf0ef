"""`fractune node`: all workers of a machine as one program, real ones on a real Redis."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from fractune_core.fleet.redis_users import ROLES
from fractune_server.transport.live_workers import live_workers
from tests.support.processes.cli_process import descendants, start
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.worker_processes import alive
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(120)


class Node:
    """A node of one measurer and one builder, which the Redis at `url` may not yet know."""

    def __init__(self, url: str, gate: Path) -> None:
        self._redis = redis.Redis.from_url(url)
        words = ["--shares", "cpu:1", "--builders", "1", "--compilers", "0", "--tuners", "0"]
        self.process = start(
            "-m",
            "fractune.cli",
            "node",
            *words,
            "--redis",
            url,
            "--lock-dir",
            str(gate),
            env={"FRACTUNE_SECRET": SECRET.decode()},
        )

    def workers(self) -> dict[str, int]:
        """Process ids of the workers that have registered, by role."""
        live = live_workers(self._redis, SECRET)
        return {role: info.pid for role in ROLES for info in live.of_role(role)}

    def end(self) -> tuple[int, str]:
        """The exit code and what was said, once the node has ended after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


@contextmanager
def node(url: str, gate: Path) -> Iterator[Node]:
    started = Node(url, gate)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.end()


def test_a_worker_that_dies_is_started_again_and_sigterm_ends_all(tmp_path: Path) -> None:
    with running_redis() as url, node(url, tmp_path / "gate") as started:
        wait_until(lambda: started.workers().keys() == {"build", "measure"})
        before = started.workers()
        os.kill(before["build"], signal.SIGKILL)
        wait_until(lambda: started.workers().get("build", before["build"]) != before["build"])
        assert started.workers()["measure"] == before["measure"]
        processes = list(descendants(started.process.pid))
        code, said = started.end()
        assert code == 0
        wait_until(lambda: not started.workers())  # the killed one's entry expires
        assert not any(map(alive, processes))
    assert "build was killed by SIGKILL" in said


@pytest.mark.long
def test_a_node_waits_for_a_redis_that_is_not_there_yet(tmp_path: Path) -> None:
    socket = tmp_path / "later.sock"
    with node(f"unix://{socket}", tmp_path / "gate") as early:
        lines = iter(early.process.stderr or ())
        assert any("ended with exit code 5" in line for line in lines)
        with running_redis() as url:
            socket.symlink_to(url.removeprefix("unix://"))
            wait_until(lambda: early.workers().keys() == {"build", "measure"}, 90)
            assert early.end()[0] == 0
