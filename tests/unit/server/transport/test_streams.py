"""Recorder, trimmer and requeuer on a real Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from fractune_core.fleet import messages
from fractune_core.fleet.marks import CANCELLED, DONE, HANDED_BACK, is_marked, mark
from fractune_core.fleet.signed_messages import seal_event, seal_work, seal_worker
from fractune_core.fleet.signing import sign_json
from fractune_core.fleet.worker_entries import put_entry
from fractune_core.records import Kind, Status, TuningRecord
from fractune_core.shares import GrantedShare
from fractune_core.spending import Piece, Spending
from fractune_server.store.records.filters import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.dead_letters import RoundPlace, write_dead_letters
from fractune_server.transport.live_workers import Fleet, live_workers
from fractune_server.transport.recorder import Recorder
from fractune_server.transport.requeue import ATTEMPTS, Loss, Requeuer
from fractune_server.transport.trim import trim
from fractune_server.transport.work_queues import WorkQueues
from tests.support.processes.fleet_simulated import DEVICE, made_up_record
from tests.support.processes.redis_process import wait_until
from tests.support.secret import SECRET

STREAM = messages.tuner_stream("tune-1")
BUILD: messages.BuildWork = {
    "do": "build",
    "work_id": "work1",
    "round_id": "round1",
    "job": "job1",
    "scope": "",
    "kind": "trial",
    "operator": {"workload_hash": "f" * 16, "name": "conv2d", "target": "{}", "target_key": "{}"},
    "device_key": DEVICE.key,
    "shares": ["cpu:1", "cpu:2"],
    "candidates": [{"candidate": "c1", "trace": "[1]"}, {"candidate": "c2", "trace": "[2]"}],
    "reply": STREAM,
}


ALONE: messages.BuildWork = {**BUILD, "candidates": BUILD["candidates"][:1]}


@pytest.fixture
def connection(connection: redis.Redis) -> redis.Redis:
    """With the stream of a tuner instance."""
    connection.sadd(messages.STREAMS, STREAM)
    return connection


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(sqlite_url(tmp_path))
    yield store
    store.close()


def record(candidate: str, share: str = "cpu:1") -> TuningRecord:
    return made_up_record({**BUILD, "share": share}, candidate, f'["{candidate}"]')


def send(connection: redis.Redis, *records: TuningRecord, stream: str = STREAM) -> None:
    for each in records:
        event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": each.to_json()}
        connection.xadd(stream, {messages.EVENT_FIELD: seal_event(SECRET, event)})


def count(store: Store) -> int:
    return store.log.count(RecordFilter())


# ---- recorder ----


def test_results_are_committed_before_they_are_acknowledged(connection: redis.Redis, store: Store) -> None:
    send(connection, record("a"), record("b"))
    send(connection, record("c"), stream=messages.SERVER_STREAM)
    recorder = Recorder(connection, store.log, SECRET)
    batches = [recorder.poll(10) for _ in range(2)]  # first what was left over, then what is new
    assert [len(batch.arrivals) for batch in batches] == [0, 3]
    assert count(store) == 3
    assert connection.xpending(STREAM, messages.RECORDER)["pending"] == 2
    recorder.acknowledge(batches[1])
    assert connection.xpending(STREAM, messages.RECORDER)["pending"] == 0


def test_how_long_a_result_was_under_way_is_told_by_redis_clock(connection: redis.Redis, store: Store) -> None:
    send(connection, record("now"))
    event: Any = {"event": "measured", "job": "job1", "round_id": "r", "record": record("late").to_json()}
    now_s: Any = connection.time()
    long_ago_ms = (now_s[0] - 100) * 1000
    entry: Any = {messages.EVENT_FIELD: seal_event(SECRET, event)}
    connection.xadd(messages.SERVER_STREAM, entry, id=f"{long_ago_ms}-0")
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(0)
    lags_s = sorted(recorder.acknowledge(recorder.poll(10)))
    assert 0 <= lags_s[0] < 60
    assert 100 <= lags_s[1] < 160
    assert recorder.acknowledge(recorder.poll(0)) == []


def test_what_was_not_acknowledged_comes_again_to_the_next_server(connection: redis.Redis, store: Store) -> None:
    send(connection, record("a"))
    first = Recorder(connection, store.log, SECRET)
    first.poll(10)
    assert len(first.poll(10).arrivals) == 1
    second = Recorder(connection, store.log, SECRET)
    batch = second.poll(10)
    assert [arrival.record for arrival in batch.arrivals] == [record_of(store)]
    second.acknowledge(batch)
    assert second.poll(10).arrivals == []
    assert count(store) == 1


def test_a_poll_of_no_length_brings_what_is_there_and_does_not_wait(
    redis_url: str, connection: redis.Redis, store: Store
) -> None:
    with redis.Redis.from_url(redis_url, socket_timeout=5.0, retry=None) as impatient:
        recorder = Recorder(impatient, store.log, SECRET)
        recorder.poll(0)
        assert recorder.poll(0).arrivals == []
        send(connection, record("a"))
        assert len(recorder.poll(0).arrivals) == 1


def record_of(store: Store) -> TuningRecord:
    return next(store.log.all(RecordFilter()))


def test_an_unreadable_result_is_set_aside_whole_and_the_others_are_recorded(
    connection: redis.Redis, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    nameless: Any = {"event": "measured", "record": {"record_id": "x"}}
    torn: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": {"record_id": "x"}}
    unreadable = ["no message", seal_event(SECRET, nameless), seal_event(SECRET, torn)]
    for text in unreadable:
        connection.xadd(STREAM, {messages.EVENT_FIELD: text})
    send(connection, record("a"))
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    batch = recorder.poll(10)
    recorder.acknowledge(batch)
    assert count(store) == 1
    entries: Any = connection.xrange(messages.UNREADABLE)
    kept = [fields for _, fields in entries]
    assert [fields[messages.EVENT_FIELD.encode()].decode() for fields in kept] == unreadable
    assert all(fields[b"place"].decode().startswith(f"{STREAM} ") for fields in kept)
    assert [fields[b"reason"][:8] for fields in kept] == [b"a result", b"it lacks", b"it lacks"]
    assert caplog.text.count("cannot read a result, and keep it") == 3
    assert connection.xpending(STREAM, messages.RECORDER)["pending"] == 0
    # Nobody waits for what will not come.
    lost = [arrival.event for arrival in batch.arrivals if arrival.event["event"] == "work_failed"]
    assert [(event["job"], event["round_id"]) for event in lost] == [("job1", "round1")]


@pytest.mark.parametrize("torn", [[], "x", 1, None, ["device"]])
@pytest.mark.parametrize("part", ["event", "record", "device", "granted", "policy"])
def test_a_part_of_a_result_that_is_no_object_is_set_aside(
    connection: redis.Redis, store: Store, part: str, torn: object
) -> None:
    whole: dict[str, Any] = record("a").to_json()
    if part in whole:
        whole[part] = torn
    event: Any = {
        "event": "measured",
        "job": "job1",
        "round_id": "round1",
        "record": torn if part == "record" else whole,
    }
    connection.xadd(STREAM, {messages.EVENT_FIELD: sign_json(SECRET, "a result", torn if part == "event" else event)})
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    recorder.acknowledge(recorder.poll(10))
    assert connection.xlen(messages.UNREADABLE) == 1
    assert count(store) == 0


@pytest.mark.parametrize("forged", ["unsigned", "altered", "of another fleet"])
def test_a_result_that_the_fleet_did_not_sign_changes_nothing_and_is_set_aside(
    connection: redis.Redis, store: Store, forged: str
) -> None:
    event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": record("a").to_json()}
    text = {
        "unsigned": json.dumps(event),
        "altered": seal_event(SECRET, event).replace('"job1"', '"job2"'),
        "of another fleet": seal_event(b"another secret", event),
    }[forged]
    connection.xadd(STREAM, {messages.EVENT_FIELD: text})
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    batch = recorder.poll(10)
    recorder.acknowledge(batch)
    assert batch.arrivals == []  # not even a lost round: nobody knows whether the round is the writer's
    assert count(store) == 0
    entries: Any = connection.xrange(messages.UNREADABLE)
    ((_, kept),) = entries
    assert kept[messages.EVENT_FIELD.encode()].decode() == text
    assert b"a result does not carry this fleet's signature" in kept[b"reason"]


def test_an_entry_without_an_event_is_nothing_to_keep(connection: redis.Redis, store: Store) -> None:
    connection.xadd(STREAM, {"other": "field"})
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    recorder.acknowledge(recorder.poll(10))
    assert connection.xlen(messages.UNREADABLE) == 0
    assert connection.xpending(STREAM, messages.RECORDER)["pending"] == 0


def test_a_result_of_a_later_version_is_recorded_without_what_it_adds(connection: redis.Redis, store: Store) -> None:
    plain = record("a")
    later = plain.to_json()
    for part in (later, later["device"], later["granted"], later["policy"]):
        part["new_in_a_later_version"] = 1
    event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": later}
    connection.xadd(STREAM, {messages.EVENT_FIELD: seal_event(SECRET, event)})
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    recorder.acknowledge(recorder.poll(10))
    assert record_of(store) == plain
    assert connection.xlen(messages.UNREADABLE) == 0


@pytest.mark.parametrize("protocol", [messages.PROTOCOL - 1, messages.PROTOCOL + 1, None])
def test_a_worker_that_would_not_understand_gets_no_work(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture, protocol: int | None
) -> None:
    (ours,) = alive("ours", 1.0).workers.values()
    other: Any = {**ours, "name": f"other-{protocol}", "protocol": protocol}
    if protocol is None:  # as workers were before they told
        del other["protocol"]
    for each in (ours, other):
        put_entry(connection, each["name"], seal_worker(SECRET, each))
    for _ in range(3):
        assert list(live_workers(connection, SECRET).workers) == ["ours"]
    assert caplog.text.count(f"worker other-{protocol} gets no work: it speaks protocol {protocol}") == 1


def test_a_worker_whose_entry_the_fleet_did_not_sign_is_not_there(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    (ours,) = alive("ours", 1.0).workers.values()
    entry = seal_worker(SECRET, ours)
    forged: Any = {**ours, "name": "forged"}
    for name, text in (("ours", entry), ("forged", json.dumps(forged)), ("copied", entry)):
        put_entry(connection, name, text)
    assert list(live_workers(connection, SECRET).workers) == ["ours"]
    for name in ("forged", "copied"):
        assert f"worker {name} gets no work: the entry of worker {name} does not carry" in caplog.text


def test_thousands_of_results_in_a_row_are_all_committed(connection: redis.Redis, store: Store) -> None:
    send(connection, *(record(f"c{index}") for index in range(2500)))
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    while count(store) < 2500:
        recorder.acknowledge(recorder.poll(10))
    assert count(store) == 2500
    assert connection.xpending(STREAM, messages.RECORDER)["pending"] == 0


# ---- trimmer ----


def test_a_stream_is_cut_to_what_some_group_still_needs(connection: redis.Redis, store: Store) -> None:
    connection.xgroup_create(STREAM, messages.TUNER, id="0", mkstream=True)
    send(connection, *(record(f"c{index}") for index in range(10)))
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    recorder.acknowledge(recorder.poll(10))
    trim(connection, recorder, alive=["tune-1"], needed=[])
    assert connection.xlen(STREAM) == 10
    entries = connection.xreadgroup(messages.TUNER, "tune-1", {STREAM: ">"}, count=6)
    assert entries
    first: Any = connection.xrange(STREAM, count=4)
    connection.xack(STREAM, messages.TUNER, *[entry for entry, _ in first])
    trim(connection, recorder, alive=["tune-1"], needed=[])
    assert connection.xlen(STREAM) == 6


def test_the_stream_of_a_dead_instance_goes_when_it_is_drained_and_unneeded(
    connection: redis.Redis, store: Store
) -> None:
    send(connection, record("a"))
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    trim(connection, recorder, alive=[], needed=[])
    assert connection.exists(STREAM)
    recorder.acknowledge(recorder.poll(10))
    trim(connection, recorder, alive=[], needed=["tune-1"])
    assert connection.exists(STREAM)
    trim(connection, recorder, alive=[], needed=[])
    assert not connection.exists(STREAM)
    assert not connection.sismember(messages.STREAMS, STREAM)
    assert recorder.poll(10).arrivals == []


# ---- requeuer ----


def take(connection: redis.Redis, name: str, *, start: bool = True) -> None:
    """Take the next build work as RQ's worker does, and never end it."""
    queue = Queue(messages.BUILD_QUEUE, connection=connection, serializer=JSONSerializer)
    worker = SimpleWorker([queue], name=name, connection=connection, serializer=JSONSerializer)
    found = worker.dequeue_job_and_maintain_ttl(timeout=None)
    assert found is not None
    if start:
        worker.prepare_execution(found[0])
        worker.prepare_job_execution(found[0], remove_from_intermediate_queue=True)


def alive(name: str, started_at: float) -> Fleet:
    info: messages.WorkerInfo = {
        "protocol": messages.PROTOCOL,
        "name": name,
        "role": "build",
        "started_at": started_at,
        "host": "",
        "pid": 0,
        "cores": [],
        "device": {},
        "granted": {},
        "share": "",
        "target": "",
        "versions": {},
    }
    return Fleet([info])


def waiting(connection: redis.Redis) -> int:
    return connection.llen(f"rq:queue:{messages.BUILD_QUEUE}")


def test_work_of_a_dead_worker_is_given_again_and_in_the_end_given_up(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    given_up: list[messages.Work] = []
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(messages.BUILD_QUEUE, ALONE)
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
    assert not queues.has(BUILD["work_id"])
    assert queues.idle()


def test_work_that_was_handed_back_counts_as_nobodys_death(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    given_up: list[messages.Work] = []
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(messages.BUILD_QUEUE, ALONE)
    for attempt in range(2 * ATTEMPTS):
        take(connection, f"w{attempt}")
        mark(connection, HANDED_BACK, BUILD["work_id"])
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
    requeuer = Requeuer(
        connection, queues, given_up.append, lambda work, loss: requeued.append((work["work_id"], loss))
    )
    queues.enqueue(messages.BUILD_QUEUE, ALONE)
    take(connection, "w1")
    requeuer.sweep(Fleet(()))
    take(connection, "w2")
    mark(connection, HANDED_BACK, ALONE["work_id"])
    requeuer.sweep(Fleet(()))
    for attempt in range(2):
        take(connection, f"killed{attempt}")
        requeuer.sweep(Fleet(()))
    losses = [Loss.WORKER_GONE, Loss.HANDED_BACK, Loss.WORKER_GONE]
    assert requeued == [(ALONE["work_id"], loss) for loss in losses]  # the last one was given up
    assert given_up == [ALONE]


def test_a_worker_of_the_same_name_that_came_up_later_is_another(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    Requeuer(connection, queues, lambda _: None).sweep(alive("w1", started_at=time.time() + 1))
    assert waiting(connection) == 1


def test_work_that_an_idle_worker_holds_is_given_again(connection: redis.Redis) -> None:
    """Redis went away while the worker began: it waits for work again, and the work counts as started."""
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
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
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
    take(connection, "w1", start=False)
    requeuer = Requeuer(connection, queues, lambda _: None)
    requeuer.sweep(alive("w1", started_at=0.0))
    assert waiting(connection) == 0
    assert not queues.idle()

    def swept() -> bool:
        requeuer.sweep(alive("w1", started_at=0.0))
        return waiting(connection) == 1

    wait_until(swept)


def test_a_batch_that_is_given_up_becomes_records_of_crashes(connection: redis.Redis, store: Store) -> None:
    shares = ("cpu:1", "cpu:2")
    granted = {share: GrantedShare(share, int(share[-1]), 2, "core", 1, reserved=False) for share in shares}
    write_dead_letters(connection, SECRET, BUILD, None)
    assert not is_marked(connection, DONE, "work1"), "nobody waits for a round that is over"
    write_dead_letters(connection, SECRET, BUILD, RoundPlace(DEVICE, granted))
    recorder = Recorder(connection, store.log, SECRET)
    recorder.poll(10)
    recorder.acknowledge(recorder.poll(10))
    found = list(store.log.all(RecordFilter()))
    assert {(each.candidate_id, each.share) for each in found} == {
        (candidate, share) for candidate in ("c1", "c2") for share in shares
    }
    assert {(each.status, each.kind) for each in found} == {(Status.CRASHED, Kind.TRIAL)}
    assert is_marked(connection, DONE, "work1")


def test_withdrawn_work_is_nowhere(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    queues.withdraw("work1")
    assert queues.idle()
    assert not queues.has("work1")
    assert is_marked(connection, DONE, "work1")


@pytest.mark.parametrize("kind", ["trial", "validation"])
def test_a_batch_of_trials_that_ends_every_worker_is_divided_and_only_the_guilty_are_given_up(
    connection: redis.Redis, kind: str
) -> None:
    queues, given_up = WorkQueues(connection, SECRET), list[messages.Work]()
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(messages.BUILD_QUEUE, {**BUILD, "kind": kind})
    for attempt in range(ATTEMPTS):
        take(connection, f"w{attempt}")
        requeuer.sweep(Fleet(()))
    if kind == "validation":  # finalists are timed in turn
        assert [work["work_id"] for work in given_up] == ["work1"]
        return
    assert (given_up, waiting(connection), queues.has("work1")) == ([], 2, False)
    assert is_marked(connection, DONE, "work1")
    for attempt in range(ATTEMPTS):
        take(connection, f"alone{attempt}")
        requeuer.sweep(Fleet(()))
    (guilty,) = given_up
    assert guilty == {**BUILD, "work_id": "work1_1", "candidates": [{"candidate": "c2", "trace": "[2]"}]}
    assert (waiting(connection), queues.has("work1_0")) == (1, True)


def test_work_that_no_worker_has_begun_has_killed_nobody(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune_server.transport.requeue._STUCK_S", 0.0)
    queues, given_up = WorkQueues(connection, SECRET), list[messages.Work]()
    requeuer = Requeuer(connection, queues, given_up.append)
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
    for attempt in range(2 * ATTEMPTS):
        take(connection, f"w{attempt}", start=False)
        requeuer.sweep(Fleet(()))
        assert waiting(connection) == 1
    assert given_up == []


def test_work_of_a_cancelled_job_is_not_given_again(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
    take(connection, "w1")
    mark(connection, CANCELLED, "round1")
    Requeuer(connection, queues, lambda _: None).sweep(Fleet(()))
    assert queues.idle()
    assert not queues.has("work1")


def test_work_of_another_version_is_neither_given_again_nor_given_up(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    given_up: list[messages.Work] = []
    old = {"do": "build", "work_id": "old", "job": "job1", "lease": "l"}
    Queue(messages.BUILD_QUEUE, connection=connection, serializer=JSONSerializer).enqueue_call(
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
        "unsigned": json.dumps(BUILD),
        "altered": seal_work(SECRET, messages.BUILD_QUEUE, BUILD).replace("[1]", "[3]"),
        "of another fleet": seal_work(b"another secret", messages.BUILD_QUEUE, BUILD),
        "of another queue": seal_work(SECRET, messages.COMPILE_QUEUE, BUILD),
    }[forged]
    queue = Queue(messages.BUILD_QUEUE, connection=connection, serializer=JSONSerializer)
    queue.enqueue_call(messages.HANDLER, args=(message,), job_id="work1")
    take(connection, "w1")
    queues, given_up = WorkQueues(connection, SECRET), list[messages.Work]()
    Requeuer(connection, queues, given_up.append).sweep(Fleet(()))
    assert queues.idle()
    assert not queues.has("work1")
    assert given_up == []
    assert (
        f"work1 on the queue {messages.BUILD_QUEUE} is dropped: work on the queue {messages.BUILD_QUEUE} does not"
        in caplog.text
    )


@pytest.mark.parametrize(
    "torn", [{"data": b"\x80"}, {"data": b"[]"}, {"other": b"1"}, {"data": b"1", "status": b"odd"}]
)
def test_a_job_that_cannot_be_read_is_dropped(connection: redis.Redis, torn: Any) -> None:
    queues = WorkQueues(connection, SECRET)
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
    connection.hset("rq:job:torn", mapping=torn)
    failed = Queue(messages.BUILD_QUEUE, connection=connection).failed_job_registry
    connection.zadd(failed.key, {"torn": time.time() + 600})
    queues.drop_foreign()
    Requeuer(connection, queues, lambda _: None).sweep(Fleet(()))
    assert connection.zcard(failed.key) == 0
    assert queues.has("work1")


def test_queues_of_tuner_instances_that_are_gone_are_dropped(connection: redis.Redis) -> None:
    queues = WorkQueues(connection, SECRET)
    for name in ("tune-1", "tune-2"):
        queues.enqueue(messages.tune_queue(name), {**BUILD, "work_id": name})
    queues.enqueue(messages.BUILD_QUEUE, BUILD)
    queues.drop_tuners_but(["tune-2"])
    assert [queues.has(name) for name in ("tune-1", "tune-2", "work1")] == [False, True, True]
    queues.clear()
    assert queues.idle()


# ---- the ledger ----


def test_what_work_took_is_in_the_ledger_once_though_it_comes_again(connection: redis.Redis, store: Store) -> None:
    piece = Piece("w1", "job1", "measure", "cpu:1", 2.0, 1.5, 100.0)
    event: Any = {"event": "piece_done", **asdict(piece)}
    for _ in range(2):
        connection.xadd(messages.SERVER_STREAM, {messages.EVENT_FIELD: seal_event(SECRET, event)})
    for _ in range(2):  # a server that ends before it acknowledges, and its successor
        recorder = Recorder(connection, store.log, SECRET)
        pieces = [arrival.piece for _ in range(2) for arrival in recorder.poll(10).arrivals]
        assert len(pieces) >= 2
        assert set(pieces) == {piece}
        assert store.ledger.spent(["job1"]) == {"job1": [Spending("measure", "cpu:1", 1, 2.0, 1.5)]}


@pytest.mark.parametrize("wrong", [{"cpu_s": -1.0}, {"worked_s": float("nan")}, {"ended_at": "x"}, {"share": None}])
def test_a_piece_that_cannot_be_read_is_set_aside(connection: redis.Redis, store: Store, wrong: dict[str, Any]) -> None:
    whole = {"event": "piece_done", **asdict(Piece("w1", "job1", "measure", "cpu:1", 2.0, 1.5, 100.0))}
    event: Any = {name: value for name, value in {**whole, **wrong}.items() if value is not None}
    connection.xadd(messages.SERVER_STREAM, {messages.EVENT_FIELD: seal_event(SECRET, event)})
    recorder = Recorder(connection, store.log, SECRET)
    assert [arrival for _ in range(2) for arrival in recorder.poll(10).arrivals] == []
    assert connection.xlen(messages.UNREADABLE) == 1
    assert store.ledger.spent(["job1"]) == {}
