"""Work in its queue, and work that nobody ends: given again, divided, given up."""

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer

from fractune_core.codec.plain_json import write_json
from fractune_core.fleet import blobs, messages, redis_names
from fractune_core.fleet.redis_state import CANCELLED, DONE, HANDED_BACK, is_marked, mark
from fractune_core.fleet.signed_messages import seal_work
from fractune_core.records import Kind
from fractune_server.transport.live_workers import Fleet, waiting_work
from fractune_server.transport.requeue import ATTEMPTS, Loss, Requeuer
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import BUILD, worker_info
from tests.support.processes.redis_process import wait_until
from tests.support.secret import SECRET

ALONE = replace(BUILD, candidates=BUILD.candidates[:1])


class Interrupted(redis.ConnectionPool):
    """Something happens, once, before one of the questions that are asked of Redis."""

    def set(self, asked_before: int, happens: Callable[[], object]) -> None:
        self.left, self.happens = asked_before, happens

    def get_connection(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            self.happens()
        return super().get_connection(*args, **options)


def take(connection: redis.Redis, name: str, *, start: bool = True) -> Job:
    """Take the next build work as RQ's worker does, and never end it."""
    queue = Queue(redis_names.BUILD_QUEUE, connection=connection, serializer=JSONSerializer)
    worker = SimpleWorker([queue], name=name, connection=connection, serializer=JSONSerializer)
    found = worker.dequeue_job_and_maintain_ttl(timeout=None)
    assert found is not None
    if start:
        worker.prepare_execution(found[0])
        worker.prepare_job_execution(found[0], remove_from_intermediate_queue=True)
    return found[0]


def alive(name: str, started_at: float) -> Fleet:
    return Fleet([worker_info(name, started_at)])


def waiting(connection: redis.Redis) -> int:
    return connection.llen(f"rq:queue:{redis_names.BUILD_QUEUE}")


def test_work_of_a_dead_worker_is_given_again_and_in_the_end_given_up(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    given_up: list[messages.Work] = []
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(redis_names.BUILD_QUEUE, ALONE)
    take(connection, "w1")
    requeuer.sweep(alive("w1", started_at=0.0))
    assert waiting(connection) == 0
    for attempt in range(ATTEMPTS):
        assert given_up == []
        requeuer.sweep(Fleet(()))
        if attempt < ATTEMPTS - 1:
            assert waiting(connection) == 1
            take(connection, f"w{attempt + 2}")
    assert given_up == [ALONE]
    assert not queues.has(BUILD.work_id)
    assert queues.idle()


def test_work_that_was_handed_back_counts_as_nobodys_death(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    given_up: list[messages.Work] = []
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(redis_names.BUILD_QUEUE, ALONE)
    for attempt in range(2 * ATTEMPTS):
        take(connection, f"w{attempt}")
        mark(connection, HANDED_BACK, BUILD.work_id)
        requeuer.sweep(Fleet(()))
        assert waiting(connection) == 1
    for attempt in range(ATTEMPTS):
        assert given_up == []
        take(connection, f"killed{attempt}")
        requeuer.sweep(Fleet(()))
    assert given_up == [ALONE]


def test_who_asks_is_told_why_work_goes_back(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    requeued: list[tuple[str, Loss]] = []
    given_up: list[messages.Work] = []
    requeuer = Requeuer(connection, queues, given_up.append, lambda work, loss: requeued.append((work.work_id, loss)))
    queues.enqueue(redis_names.BUILD_QUEUE, ALONE)
    take(connection, "w1")
    requeuer.sweep(Fleet(()))
    take(connection, "w2")
    mark(connection, HANDED_BACK, ALONE.work_id)
    requeuer.sweep(Fleet(()))
    for attempt in range(2):
        take(connection, f"killed{attempt}")
        requeuer.sweep(Fleet(()))
    losses = [Loss.WORKER_GONE, Loss.HANDED_BACK, Loss.WORKER_GONE]
    assert requeued == [(ALONE.work_id, loss) for loss in losses]  # the last one was given up
    assert given_up == [ALONE]


def test_a_worker_of_the_same_name_that_came_up_later_is_another(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    Requeuer(connection, queues, lambda _: None).sweep(alive("w1", started_at=time.time() + 1))
    assert waiting(connection) == 1


def test_work_that_an_idle_worker_holds_is_given_again(connection: redis.Redis) -> None:
    """Redis went away while the worker began: it waits for work again, and the work counts as started."""
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    requeuer = Requeuer(connection, queues, lambda _: None)
    requeuer.sweep(alive("w1", started_at=0.0))
    assert waiting(connection) == 0
    connection.hset("rq:worker:w1", "state", "idle")
    requeuer.sweep(alive("w1", started_at=0.0))
    assert waiting(connection) == 1


def test_work_taken_and_never_started_is_given_again(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractune_server.transport.requeue._STUCK_S", 0.2)
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    take(connection, "w1", start=False)
    requeuer = Requeuer(connection, queues, lambda _: None)
    requeuer.sweep(alive("w1", started_at=0.0))
    assert waiting(connection) == 0
    assert not queues.idle()

    def swept() -> bool:
        requeuer.sweep(alive("w1", started_at=0.0))
        return waiting(connection) == 1

    wait_until(swept)


def test_withdrawn_work_is_nowhere(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    queues.withdraw("work1")
    assert queues.idle()
    assert not queues.has("work1")
    assert is_marked(connection, DONE, "work1")


def test_work_is_known_when_it_was_handed_out_whatever_became_of_it(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    assert not queues.knows("work1")
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    assert queues.knows("work1")
    job = take(connection, "w1")
    assert queues.knows("work1")
    mark(connection, DONE, "work1")
    job.delete()
    assert queues.knows("work1")


@pytest.mark.parametrize("how", ["withdrawn", "cancelled", "given up", "given again"])
def test_a_worker_may_end_work_at_any_moment_of_its_being_taken_back(
    connection: redis.Redis, redis_url: str, how: str
) -> None:
    pool = Interrupted.from_url(redis_url)
    pool.set(sys.maxsize, lambda: None)
    with redis.Redis.from_pool(pool) as interrupted:
        queues = WorkQueues(interrupted, SECRET)
        requeuer = Requeuer(interrupted, queues, lambda _: None)
        for moment in itertools.count():
            WorkQueues(connection, SECRET).enqueue(redis_names.BUILD_QUEUE, ALONE)
            job = take(connection, "w1")
            if how == "cancelled":
                mark(connection, CANCELLED, "round1")
            elif how == "given up":
                job.meta["deaths"] = ATTEMPTS
                job.save_meta()  # type: ignore[no-untyped-call]
            pool.set(moment, job.delete)
            if how == "withdrawn":
                queues.withdraw("work1")
            else:
                requeuer.sweep(Fleet(()))
            if pool.left >= 0:  # it was over before
                break
            if how != "given again":
                assert not queues.has("work1")
                assert queues.idle()
            connection.flushall()
    assert moment > 5


@pytest.mark.parametrize("kind", ["trial", "validation"])
def test_a_batch_of_trials_that_ends_every_worker_is_divided_and_only_the_guilty_are_given_up(
    connection: redis.Redis, kind: str
) -> None:
    queues, given_up = WorkQueues(connection, SECRET), list[messages.Work]()
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(redis_names.BUILD_QUEUE, replace(BUILD, purpose=Kind(kind)))
    for attempt in range(ATTEMPTS):
        take(connection, f"w{attempt}")
        requeuer.sweep(Fleet(()))
    if kind == "validation":  # finalists are timed in turn
        assert [work.work_id for work in given_up] == ["work1"]
        return
    assert (given_up, waiting(connection), queues.has("work1")) == ([], 2, False)
    assert is_marked(connection, DONE, "work1")
    for attempt in range(ATTEMPTS):
        take(connection, f"alone{attempt}")
        requeuer.sweep(Fleet(()))
    (guilty,) = given_up
    assert guilty == replace(BUILD, work_id="work1_1", candidates=BUILD.candidates[1:])
    assert (waiting(connection), queues.has("work1_0")) == (1, True)


def test_work_that_no_worker_has_begun_has_killed_nobody(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune_server.transport.requeue._STUCK_S", 0.0)
    queues, given_up = WorkQueues(connection, SECRET), list[messages.Work]()
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    for attempt in range(2 * ATTEMPTS):
        take(connection, f"w{attempt}", start=False)
        requeuer.sweep(Fleet(()))
        assert waiting(connection) == 1
    assert given_up == []


def test_work_of_a_cancelled_job_is_not_given_again(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    mark(connection, CANCELLED, "round1")
    Requeuer(connection, queues, lambda _: None).sweep(Fleet(()))
    assert queues.idle()
    assert not queues.has("work1")


def test_work_of_another_version_is_neither_given_again_nor_given_up(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    given_up: list[messages.Work] = []
    old = {"do": "build", "work_id": "old", "job": "job1", "lease": "l"}
    Queue(redis_names.BUILD_QUEUE, connection=connection, serializer=JSONSerializer).enqueue_call(
        "workers.entry.handle", args=(old,), job_id="old"
    )
    take(connection, "w1")
    Requeuer(connection, queues, given_up.append).sweep(Fleet(()))
    assert queues.idle()
    assert not queues.has("old")
    assert given_up == []


@pytest.mark.parametrize("forged", ["unsigned", "altered", "of another fleet", "of another queue"])
def test_work_that_the_fleet_did_not_sign_is_neither_given_again_nor_given_up(
    connection: redis.Redis, forged: str, caplog: pytest.LogCaptureFixture
) -> None:
    message = {
        "unsigned": write_json(BUILD),
        "altered": seal_work(SECRET, redis_names.BUILD_QUEUE, BUILD).replace("[1]", "[3]"),
        "of another fleet": seal_work(b"another secret", redis_names.BUILD_QUEUE, BUILD),
        "of another queue": seal_work(SECRET, redis_names.COMPILE_QUEUE, BUILD),
    }[forged]
    queue = Queue(redis_names.BUILD_QUEUE, connection=connection, serializer=JSONSerializer)
    queue.enqueue_call(redis_names.HANDLER, args=(message,), job_id="work1")
    take(connection, "w1")
    queues, given_up = WorkQueues(connection, SECRET), list[messages.Work]()
    Requeuer(connection, queues, given_up.append).sweep(Fleet(()))
    assert queues.idle()
    assert not queues.has("work1")
    assert given_up == []
    assert (
        f"dropped work1 from the queue {redis_names.BUILD_QUEUE}: work on the queue {redis_names.BUILD_QUEUE} does not"
        in caplog.text
    )


@pytest.mark.parametrize(
    "torn", [{"data": b"\x80"}, {"data": b"[]"}, {"other": b"1"}, {"data": b"1", "status": b"odd"}]
)
def test_a_job_that_cannot_be_read_is_dropped(connection: redis.Redis, torn: Any) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    connection.hset("rq:job:torn", mapping=torn)
    failed = Queue(redis_names.BUILD_QUEUE, connection=connection).failed_job_registry
    connection.zadd(failed.key, {"torn": time.time() + 600})
    queues.drop_foreign()
    Requeuer(connection, queues, lambda _: None).sweep(Fleet(()))
    assert connection.zcard(failed.key) == 0
    assert queues.has("work1")


def test_a_job_that_would_fill_the_memory_is_dropped(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    monkeypatch.setattr(blobs, "_MOST_BYTES", 100)
    queues.drop_foreign()
    assert not queues.has("work1")


@pytest.mark.parametrize("meta", [{"deaths": "many"}, ["deaths"], {"deaths": None}])
def test_a_count_of_deaths_that_is_none_counts_as_0(connection: redis.Redis, meta: Any) -> None:
    queues, given_up = WorkQueues(connection, SECRET), list[messages.Work]()
    queues.enqueue(redis_names.BUILD_QUEUE, ALONE)
    take(connection, "w1")
    connection.hset("rq:job:work1", "meta", json.dumps(meta))
    Requeuer(connection, queues, given_up.append).sweep(Fleet(()))
    assert waiting(connection) == 1
    assert given_up == []


def test_queues_of_tuner_instances_that_are_gone_are_dropped(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    for name in ("tune-1", "tune-2"):
        queues.enqueue(redis_names.tune_queue(name), replace(BUILD, work_id=name))
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    queues.drop_tuners_but(["tune-2"])
    assert [queues.has(name) for name in ("tune-1", "tune-2", "work1")] == [False, True, True]
    queues.clear()
    assert queues.idle()


def test_names_and_times_that_nobody_can_read_are_passed_over(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queues, requeued = WorkQueues(connection, SECRET), list[messages.Work]()
    queues.enqueue(redis_names.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    queue = Queue(redis_names.BUILD_QUEUE, connection=connection)
    held: Any = connection.zrange(queue.started_job_registry.key, 0, -1)
    (started,) = held
    connection.hset(f"rq:execution:{started.decode()}", mapping={"created_at": "soon", "worker_name": b"\xff"})
    connection.sadd("rq:queues", b"\xff", "other", "rq:queue:")
    connection.rpush(queue.key, b"\xff")
    connection.rpush(queue.intermediate_queue_key, b"\xff")
    connection.zadd(queue.failed_job_registry.key, {b"\xff": 1.0})
    connection.zadd(queue.started_job_registry.key, {b"\xff": 1.0, b"a:b:c": 1.0, b"a": 1.0})
    queues.drop_foreign()
    assert waiting_work(connection).unreadable == 0
    Requeuer(connection, queues, lambda _: None, lambda work, _: requeued.append(work)).sweep(Fleet(()))
    assert requeued == [BUILD]
    assert "is not UTF-8; it is passed over" in caplog.text
    queues.clear()
