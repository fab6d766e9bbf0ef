"""What a worker asks of Redis for a piece of work, counted by Redis itself."""

import signal
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.errors import RedisGone
from fractune_core.fleet.redis_names import COMPILE_QUEUE, HANDLER
from fractune_workers import entry
from fractune_workers.entry import REDIS_LOST, WorkLoop, redis_lost
from tests.support.processes.redis_process import commands_of, running_redis

WORK = 10


@pytest.fixture
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


def do_all(connection: redis.Redis) -> int:
    """Have a worker do what waits; how many pieces it did."""
    done: list[str] = []
    WorkLoop("compile-1", connection, COMPILE_QUEUE, lambda job_id, _: done.append(job_id)).run(WORK)
    return len(done)


def test_a_worker_works_on_one_connection_and_leaves_nothing(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as outside, redis.Redis.from_url(redis_url, socket_timeout=None) as own:
        queue = Queue(COMPILE_QUEUE, connection=outside, serializer=JSONSerializer)
        for number in range(WORK):
            queue.enqueue_call(HANDLER, args=("",), job_id=f"work{number}")
        with commands_of(outside) as commands:
            assert do_all(own) == WORK
        since: Any = outside.info("stats")
        # It lives on a second one, while this one waits for work.
        assert since["total_connections_received"] == 1
        looks = {"watch", "smembers", "zrange", "hget", "hgetall", "zremrangebyscore"}
        assert {name: commands.get(name, 0) // WORK for name in looks} == {**dict.fromkeys(looks, 0), "hget": 1}
        left: Any = outside.keys("rq:*")
        assert left == [b"rq:queues"]


class Keeper:
    """Keeps something from each piece of work on, and notes what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def keeps(self) -> bool:
        return self.events[-1:] not in ([], ["rest"])

    def rest(self) -> None:
        self.events.append("rest")


def test_what_is_kept_for_the_next_work_is_given_up_before_the_loop_waits(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        queue = Queue(COMPILE_QUEUE, connection=connection, serializer=JSONSerializer)
        keeper = Keeper()
        loop = WorkLoop("measure-1", connection, COMPILE_QUEUE, lambda job_id, _: keeper.events.append(job_id), keeper)
        for batch in (("one", "two"), ("three",)):
            for name in batch:
                queue.enqueue_call(HANDLER, args=("",), job_id=name)
            while (job_id := loop.take_or_rest(0.01)) is not None:
                loop.work_on(job_id)
        assert keeper.events == ["one", "two", "rest", "three", "rest"]
        queue.enqueue_call(HANDLER, args=("",), job_id="last")
        queue.enqueue_call(HANDLER, args=("",), job_id="waiting")
        loop.run(1)
        assert keeper.events[-2:] == ["last", "rest"], "a worker that ends keeps nothing"


def test_work_that_raises_is_left_to_the_server(redis_url: str) -> None:
    def fail(_job_id: str, _message: str) -> None:
        raise RuntimeError("made to fail")

    with redis.Redis.from_url(redis_url) as connection:
        queue = Queue(COMPILE_QUEUE, connection=connection, serializer=JSONSerializer)
        queue.enqueue_call(HANDLER, args=("",), job_id="work1")
        WorkLoop("compile-1", connection, COMPILE_QUEUE, fail).run(1)
        assert queue.failed_job_registry.get_job_ids(cleanup=False) == ["work1"]
        assert queue.started_job_registry.get_job_ids(cleanup=False) == []
        assert connection.exists("rq:job:work1")


def test_a_job_that_is_gone_is_passed_over(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        queue = Queue(COMPILE_QUEUE, connection=connection, serializer=JSONSerializer)
        connection.rpush(queue.key, "gone")
        WorkLoop("compile-1", connection, COMPILE_QUEUE, lambda *_: pytest.fail("done")).run(1)
        assert connection.keys("rq:*") == []


@pytest.mark.parametrize(
    ("start", "repeated", "times", "end"),
    [(b"", b"[", 100_000, b""), (b'[0, 0, ["', b"a", 65 << 20, b'"]]')],
    ids=["deep", "long"],
)
def test_a_job_that_no_memory_could_hold_is_one_that_is_not_ours(
    redis_url: str, start: bytes, repeated: bytes, times: int, end: bytes
) -> None:
    text = start + repeated * times + end
    done: list[str] = []
    with redis.Redis.from_url(redis_url) as connection:
        connection.hset("rq:job:odd", "data", zlib.compress(text))
        connection.rpush(Queue(COMPILE_QUEUE, connection=connection).key, "odd")
        WorkLoop("compile-1", connection, COMPILE_QUEUE, lambda _, message: done.append(message)).run(1)
    assert done == [""]


def test_a_stop_that_comes_just_before_the_wait_takes_no_work(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Any] = {}
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    with redis.Redis.from_url(redis_url) as connection:
        queue = Queue(COMPILE_QUEUE, connection=connection, serializer=JSONSerializer)
        queue.enqueue_call(HANDLER, args=("",), job_id="waiting")
        loop = WorkLoop("compile-1", connection, COMPILE_QUEUE, lambda *_: pytest.fail("it was taken"))
        loop.stop_on_signals(lambda: None)
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        assert loop.take() is None
        assert queue.get_job_ids() == ["waiting"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (redis.OutOfMemoryError("used memory"), r"^Redis is out of memory \(used memory\); give it more"),
        (redis.ConnectionError("reset"), r"^Redis went away \(reset\); start it, then start this worker again$"),
    ],
)
def test_a_worker_that_has_lost_its_redis_says_what_to_do(error: redis.RedisError, says: str) -> None:
    assert isinstance(error, REDIS_LOST)
    with pytest.raises(RedisGone, match=says):
        raise redis_lost(error)


def test_work_of_one_owner_is_taken_together_for_a_while(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        queue = Queue(COMPILE_QUEUE, connection=connection, serializer=JSONSerializer)
        taken: list[str] = []
        do = lambda job_id, _: taken.append(job_id)  # noqa: E731

        def all_of(owners: str) -> str:
            taken.clear()
            for number, owner in enumerate(owners):
                queue.enqueue_call(HANDLER, args=("",), job_id=f"{owner}{number}", description=owner)
            WorkLoop("compile-1", connection, COMPILE_QUEUE, do, by_owner=True).run(len(owners))
            assert connection.llen(queue.intermediate_queue_key) == connection.llen(queue.key) == 0
            return "".join(each[0] for each in taken)

        assert all_of("aababbab") == "aabbbbaa"
        assert [each[1:] for each in taken] == ["0", "1", "2", "4", "5", "7", "3", "6"]
        monkeypatch.setattr(entry, "_STAY_S", 0.0)
        assert all_of("ababab") == "ababab", "others' work waits only so long"
