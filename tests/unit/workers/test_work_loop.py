"""What a worker asks of Redis for a piece of work, counted by Redis itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty

from fractune_core.fleet.redis_names import COMPILE_QUEUE, HANDLER
from fractune_workers import entry
from fractune_workers.work_loop import WorkLoop
from tests.support.processes.redis_process import commands_of, running_redis

WORK = 10


@pytest.fixture
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


def do_all(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> int:
    """Have a worker do what waits; how many pieces it did."""
    done: list[str] = []
    monkeypatch.setattr(entry, "handle", lambda _queue, job_id, _message: done.append(job_id))
    loop: Any = WorkLoop("compile-1", connection, [COMPILE_QUEUE])
    loop.death_penalty_class = TimerDeathPenalty  # signals are for main threads
    loop._install_signal_handlers = lambda: None
    thread = threading.Thread(target=loop.work, kwargs={"burst": True, "logging_level": "ERROR"})
    thread.start()
    thread.join()
    return len(done)


def test_a_worker_works_on_one_connection_and_leaves_nothing(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis.Redis.from_url(redis_url) as outside, redis.Redis.from_url(redis_url, socket_timeout=None) as own:
        queue = Queue(COMPILE_QUEUE, connection=outside, serializer=JSONSerializer)
        for number in range(WORK):
            queue.enqueue_call(HANDLER, args=("",), job_id=f"work{number}")
        with commands_of(outside) as commands:
            assert do_all(own, monkeypatch) == WORK
        since: Any = outside.info("stats")
        # It lives on a second one, while this one waits for work.
        assert since["total_connections_received"] == 1
        looks = {"watch", "smembers", "zrange", "hget", "hgetall", "zremrangebyscore"}
        assert {name: commands.get(name, 0) // WORK for name in looks} == {**dict.fromkeys(looks, 0), "hgetall": 1}
        left: Any = outside.keys("rq:*")
        assert {key.decode() for key in left} <= {"rq:queues", "rq:worker:compile-1", f"rq:workers:{COMPILE_QUEUE}"}
