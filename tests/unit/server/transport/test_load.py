"""What a sweep of the server asks of Redis, counted by Redis itself."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.codec.plain_json import to_dict, write_json
from fractune_core.errors import BadModel, FractuneError, JobFailed
from fractune_core.fleet import redis_names
from fractune_core.fleet.messages import WorkFailed
from fractune_core.fleet.redis_state import put_entry
from fractune_core.fleet.signed_messages import seal_worker, sign_json
from fractune_server.transport.context import reported_error
from fractune_server.transport.live_workers import live_workers
from fractune_server.transport.recorder import Recorder, trim
from fractune_server.transport.requeue import Requeuer
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.entry import WorkLoop
from tests.support.fleet_messages import TIME_MODEL, worker_info
from tests.support.processes.redis_process import commands_of
from tests.support.secret import SECRET

WORK = 200
WORKERS = 20
STARTED_AT = 1.0


def begin_work(connection: redis.Redis, count: int) -> None:
    """Have WORKERS live workers begin `count` pieces of work, and end none."""
    queues = WorkQueues(connection, SECRET)
    names = [f"w{number}" for number in range(WORKERS)]
    loops = [WorkLoop(name, connection, redis_names.COMPILE_QUEUE, lambda *_: None) for name in names]
    for number in range(count):
        queues.enqueue(redis_names.COMPILE_QUEUE, replace(TIME_MODEL, work_id=f"work{number}"))
        loop = loops[number % WORKERS]
        job_id = loop.take()
        assert job_id is not None
        loop.begin(job_id)
    for name in names:  # last, for nobody renews these entries, and on a slow machine they would expire meanwhile
        put_entry(connection, name, seal_worker(SECRET, worker_info(name, STARTED_AT, "compile")))


def round_trips(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> int:
    """How often `call` sends something to Redis."""
    sent: list[object] = []
    send = redis.Connection.send_packed_command

    def counted(self: Any, *args: Any, **options: Any) -> None:
        sent.append(args)
        send(self, *args, **options)  # type: ignore[no-untyped-call]

    with monkeypatch.context() as patched:
        patched.setattr(redis.Connection, "send_packed_command", counted)
        patched.setattr(redis.UnixDomainSocketConnection, "send_packed_command", counted)
        call()
    return len(sent)


def test_the_live_workers_are_two_commands_whatever_else_redis_holds(connection: redis.Redis) -> None:
    for number in range(100):
        put_entry(connection, f"w{number}", seal_worker(SECRET, worker_info(f"w{number}", STARTED_AT, "compile")))
    connection.mset({f"other:{number}": 1 for number in range(5000)})
    with commands_of(connection) as commands:
        assert len(live_workers(connection, SECRET).workers) == 100
    assert commands == {"smembers": 1, "mget": 1}


def test_a_sweep_beside_200_running_pieces_of_work_is_few_round_trips(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_work(connection, WORK)
    requeuer = Requeuer(connection, WorkQueues(connection, SECRET), lambda _: None)

    def sweep() -> None:
        requeuer.sweep(live_workers(connection, SECRET))

    with commands_of(connection) as commands:
        sweep()
    assert commands == {"smembers": 2, "mget": 1, "zrange": 2, "lrange": 1, "hmget": WORK, "hget": WORKERS}
    assert round_trips(monkeypatch, sweep) == 6
    assert connection.zcard(f"rq:wip:{redis_names.COMPILE_QUEUE}") == WORK


def test_streams_are_trimmed_in_three_round_trips_however_many(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(50)]
    connection.sadd(redis_names.STREAMS, *map(redis_names.tuner_stream, names))
    log: Any = SimpleNamespace(add=lambda _: None)
    recorder = Recorder(connection, log, SECRET, list)
    recorder.poll(0)
    for name in names:
        connection.xadd(redis_names.tuner_stream(name), {"": ""})
    recorder.acknowledge(recorder.poll(0))
    recorder.acknowledge(recorder.poll(0))
    for name in names:
        connection.xreadgroup(redis_names.TUNER, name, {redis_names.tuner_stream(name): ">"})
    assert round_trips(monkeypatch, lambda: trim(connection, recorder, names, ())) == 3
    assert connection.xlen(redis_names.tuner_stream("t7")) == 1, "the tuner instance has not acknowledged it"


def test_work_is_handed_out_in_one_round_trip(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = WorkQueues(connection, SECRET)

    def hand_out(name: str, *, at_front: bool) -> None:
        queues.enqueue(redis_names.COMPILE_QUEUE, replace(TIME_MODEL, work_id=name), at_front=at_front)

    hand_out("first", at_front=False)
    assert round_trips(monkeypatch, lambda: hand_out("later", at_front=False)) == 1
    hand_out("urgent", at_front=True)
    waiting = Queue(redis_names.COMPILE_QUEUE, connection=connection, serializer=JSONSerializer)
    assert waiting.get_job_ids() == ["urgent", "first", "later"]
    works = [queues.open_or_drop(waiting, job) for job in waiting.jobs]
    assert [work.job for work in works if work] == ["job1"] * 3


def test_queues_are_dropped_without_a_script(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(redis_names.tune_queue("gone"), TIME_MODEL)
    with commands_of(connection) as commands:
        queues.drop_tuners_but([])
    assert not commands.keys() & {"eval", "evalsha", "script|load"}
    assert connection.dbsize() == 0


@pytest.mark.parametrize("protocol", [redis_names.PROTOCOL - 1, redis_names.PROTOCOL + 1, None])
def test_a_worker_that_would_not_understand_gets_no_work(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture, protocol: int | None
) -> None:
    ours = worker_info("ours", 1.0)
    name = f"other-{protocol}"
    put_entry(connection, "ours", seal_worker(SECRET, ours))
    other = sign_json(SECRET, f"the entry of worker {name}", {**to_dict(ours), "name": name, "protocol": protocol})
    put_entry(connection, name, other)
    for _ in range(3):
        assert list(live_workers(connection, SECRET).workers) == ["ours"]
    assert caplog.text.count(f"worker other-{protocol} gets no work: it uses protocol {protocol}") == 1


def test_a_worker_whose_entry_the_fleet_did_not_sign_is_not_there(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ours = worker_info("ours", 1.0)
    entry = seal_worker(SECRET, ours)
    forged = replace(ours, name="forged")
    for name, text in (("ours", entry), ("forged", write_json(forged)), ("copied", entry)):
        put_entry(connection, name, text)
    assert list(live_workers(connection, SECRET).workers) == ["ours"]
    for name in ("forged", "copied"):
        assert f"worker {name} gets no work: the entry of worker {name} does not carry" in caplog.text


@pytest.mark.parametrize(
    ("name", "kind"), [("BadModel", BadModel), ("StateUnusable", JobFailed), ("QuotaExceeded", JobFailed)]
)
def test_a_worker_without_space_on_its_disk_fails_its_job_and_not_the_server(
    name: str, kind: type[FractuneError]
) -> None:
    """The engine ends after StateUnusable, which means its own state."""
    event = WorkFailed(job="j", task="compile", error=name, message="disk full")
    error = reported_error(event)
    assert (type(error), str(error)) == (kind, "disk full")
