"""deploy/measurers: the measurers of one container, real ones on a real Redis, which end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from fractune_server.transport.live_workers import live_workers
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import descendants
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.worker_processes import alive
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(120)


class Measurers:
    """The script with the list of shares `shares`."""

    def __init__(self, url: str, gate: Path, shares: str) -> None:
        self._redis = redis.Redis.from_url(url)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [REPOSITORY / "deploy" / "measurers", shares, "--redis", url, "--lock-dir", gate],
            env={**os.environ, "PATH": path, "FRACTUNE_SECRET": SECRET.decode()},
            stderr=subprocess.PIPE,
            text=True,
        )

    def workers(self) -> list[int]:
        """Process ids of the measurers that have registered."""
        found = live_workers(self._redis, SECRET).of_role("measure")
        assert {info.share for info in found} <= {"cpu:1"}
        return [info.pid for info in found]

    def all_processes(self) -> list[int]:
        return list(descendants(self.process.pid))

    def end(self) -> tuple[int, str]:
        """The exit code and what was said, once the script has ended."""
        said = self.process.communicate(timeout=60)[1]
        return self.process.returncode, said


@contextmanager
def measurers(tmp_path: Path, shares: str) -> Iterator[Measurers]:
    with running_redis() as url:
        started = Measurers(url, tmp_path / "gate", shares)
        try:
            yield started
        finally:
            started.process.terminate()
            started.process.wait(60)


@pytest.mark.long
def test_a_share_named_twice_has_two_measurers_and_sigterm_ends_both(tmp_path: Path) -> None:
    with measurers(tmp_path, "cpu:1,cpu:1") as started:
        wait_until(lambda: len(started.workers()) == 2, 60)
        processes = started.all_processes()
        started.process.send_signal(signal.SIGTERM)
        assert started.end()[0] == 128 + signal.SIGTERM
        assert started.workers() == []
        assert not any(map(alive, processes))


def test_when_one_measurer_dies_the_others_end_and_the_script_tells_its_code(tmp_path: Path) -> None:
    with measurers(tmp_path, "cpu:1,cpu:1") as started:
        wait_until(lambda: len(started.workers()) == 2, 60)
        os.kill(started.workers()[0], signal.SIGKILL)
        assert started.end()[0] == 128 + signal.SIGKILL


@pytest.mark.long
def test_a_share_that_is_refused_ends_all_with_its_message(tmp_path: Path) -> None:
    with measurers(tmp_path, "cpu:1,cpu:9999") as started:
        code, said = started.end()
    assert code == 4
    assert "share 'cpu:9999' is larger than this machine" in said
