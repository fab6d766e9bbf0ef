"""The stack's Redis keeps what it has answered, however it ends."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fractune.local.embedded_redis import redis_answers, redis_command
from tests.support.processes.redis_process import wait_until

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
