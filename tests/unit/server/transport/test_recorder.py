"""Results on their way into the log, on a real Redis: recorded, set aside, trimmed."""

import itertools
import json
import threading
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from fractune_core.fleet import redis_names
from fractune_core.fleet.messages import CandidateItem, PieceDone, WorkFailed
from fractune_core.fleet.redis_names import EVENT_FIELD, RECORDER, SERVER_STREAM
from fractune_core.fleet.redis_state import DONE, is_marked
from fractune_core.fleet.signed_messages import seal_event, sign_json
from fractune_core.records import UNTUNED, Kind, Spending, Status, TuningRecord, WorkCost, record_id
from fractune_core.shares import GrantedShare
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store
from fractune_server.transport.recorder import Recorder, trim
from fractune_server.transport.requeue import RoundPlace, write_dead_letters
from fractune_server.transport.unreadable import replay, unreadable_results
from tests.support.fleet_messages import BUILD, STREAM, record, send, send_once_more
from tests.support.fuzz.sealed import EVENTS
from tests.support.processes.made_up import DEVICE
from tests.support.processes.network import network_to_redis
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.secret import SECRET


@pytest.fixture
def connection(connection: redis.Redis) -> redis.Redis:
    """With the stream of a tuner instance."""
    connection.sadd(redis_names.STREAMS, STREAM)
    return connection


def count(store: Store) -> int:
    return store.log.count(RecordFilter())


def record_of(store: Store) -> TuningRecord:
    return next(store.log.all(RecordFilter()))


def opened(connection: redis.Redis, store: Store, timeout_ms: int = 0) -> Recorder:
    """A recorder that has looked once."""
    recorder = Recorder(connection, store.log, SECRET, list)
    recorder.poll(timeout_ms)
    return recorder


def record_all(connection: redis.Redis, store: Store) -> Recorder:
    recorder = opened(connection, store, 10)
    recorder.acknowledge(recorder.poll(10))
    return recorder


def test_results_are_committed_before_they_are_acknowledged(connection: redis.Redis, store: Store) -> None:
    send(connection, record("a"), record("b"))
    send(connection, record("c"), stream=redis_names.SERVER_STREAM)
    recorder = Recorder(connection, store.log, SECRET, list)
    batches = [recorder.poll(10) for _ in range(2)]  # first what was left over, then what is new
    assert [len(batch.arrivals) for batch in batches] == [0, 3]
    assert count(store) == 3
    assert connection.xpending(STREAM, redis_names.RECORDER)["pending"] == 2
    recorder.acknowledge(batches[1])
    assert connection.xpending(STREAM, redis_names.RECORDER)["pending"] == 0


def test_how_long_a_result_was_under_way_is_told_by_redis_clock(connection: redis.Redis, store: Store) -> None:
    send(connection, record("now"))
    event: Any = {"event": "measured", "job": "job1", "round_id": "r", "record": record("late").to_json()}
    now_s: Any = connection.time()
    long_ago_ms = (now_s[0] - 100) * 1000
    entry: Any = {redis_names.EVENT_FIELD: seal_event(SECRET, event)}
    connection.xadd(redis_names.SERVER_STREAM, entry, id=f"{long_ago_ms}-0")
    recorder = opened(connection, store)
    lags_s = sorted(recorder.acknowledge(recorder.poll(10)))
    assert 0 <= lags_s[0] < 60
    assert 100 <= lags_s[1] < 160
    assert recorder.acknowledge(recorder.poll(0)) == []


def test_what_was_not_acknowledged_comes_again_to_the_next_server(connection: redis.Redis, store: Store) -> None:
    send(connection, record("a"))
    first = Recorder(connection, store.log, SECRET, list)
    first.poll(10)
    assert len(first.poll(10).arrivals) == 1
    second = Recorder(connection, store.log, SECRET, list)
    batch = second.poll(10)
    assert [arrival.record for arrival in batch.arrivals] == [record_of(store)]
    second.acknowledge(batch)
    assert second.poll(10).arrivals == []
    assert count(store) == 1


def test_an_unreadable_result_is_set_aside_whole_and_the_others_are_recorded(
    connection: redis.Redis, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    nameless: Any = {"event": "measured", "record": {"record_id": "x"}}
    torn: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": {"record_id": "x"}}
    unreadable = ["no message", seal_event(SECRET, nameless), seal_event(SECRET, torn)]
    for text in unreadable:
        connection.xadd(STREAM, {redis_names.EVENT_FIELD: text})
    send(connection, record("a"))
    recorder = opened(connection, store, 10)
    batch = recorder.poll(10)
    recorder.acknowledge(batch)
    assert count(store) == 1
    entries: Any = connection.xrange(redis_names.UNREADABLE)
    kept = [fields for _, fields in entries]
    assert [fields[redis_names.EVENT_FIELD.encode()].decode() for fields in kept] == unreadable
    assert all(fields[b"place"].decode().startswith(f"{STREAM} ") for fields in kept)
    assert [fields[b"reason"][:8] for fields in kept] == [b"a result", b"Object m", b"Object m"]
    assert caplog.text.count("cannot read a result, and keep it") == 3
    assert connection.xpending(STREAM, redis_names.RECORDER)["pending"] == 0
    # Nobody waits for what will not come.
    lost = [arrival.event for arrival in batch.arrivals if isinstance(arrival.event, WorkFailed)]
    assert [(event.job, event.round_id) for event in lost] == [("job1", "round1")]


_LOST = [
    ({"event": "ingested", "job": "j", "target": "llvm"}, ("ingest", "BadModel", "")),
    ({"event": "compiled", "job": "j", "bundle": 3}, ("compile", "FractuneError", "")),
    ({"event": "model_timed", "job": "j", "share": "cpu:1"}, ("time_model", "FractuneError", "")),
    ({"event": "proposed", "job": "j", "round_id": "r"}, ("search", "FractuneError", "r")),
    (
        {"event": "work_failed", "job": "j", "task": "ingest", "error": "BadModel", "message": "a\0b"},
        ("ingest", "BadModel", ""),
    ),
    ({"event": "work_failed", "job": "j", "task": "build", "round_id": "r"}, ("build", "FractuneError", "r")),
]


@pytest.mark.parametrize(("event", "failed"), _LOST, ids=lambda each: str(each["event"]) if "event" in each else "")
def test_whoever_waits_for_an_unreadable_result_hears_that_it_failed(
    connection: redis.Redis, store: Store, event: Any, failed: tuple[str, str, str]
) -> None:
    connection.xadd(redis_names.SERVER_STREAM, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
    recorder = opened(connection, store)
    (arrival,) = recorder.poll(0).arrivals
    found = arrival.event
    assert isinstance(found, WorkFailed)
    assert (found.task, found.error, found.round_id) == failed
    assert found.message.startswith(f"a result of it ({failed[0]}) cannot be recorded: ")


@pytest.mark.parametrize(
    "event",
    [
        {"event": "roof_measured", "job": "j"},
        {"event": "piece_done", "job": "j"},
        {"event": ["ingested"], "job": "j"},
        {"event": "work_failed", "job": "j", "task": ["ingest"]},
        {"event": "ingested"},
        {},
    ],
)
def test_nobody_waits_for_other_results(connection: redis.Redis, store: Store, event: Any) -> None:
    connection.xadd(redis_names.SERVER_STREAM, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
    recorder = opened(connection, store)
    assert recorder.poll(0).arrivals == []
    assert connection.xlen(redis_names.UNREADABLE) == 1


def test_a_result_that_somebody_else_gives_once_more_is_set_aside(connection: redis.Redis, store: Store) -> None:
    event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": record("a").to_json()}
    connection.xadd(redis_names.SERVER_STREAM, {redis_names.REPLAYED_FIELD: seal_event(SECRET, event)})
    record_all(connection, store)
    assert connection.xlen(redis_names.UNREADABLE) == 1
    assert count(store) == 0


@pytest.mark.parametrize(("age_s", "reason"), [(3700.0, "is older than 1 h"), (-3700.0, "is dated in the future")])
def test_a_replay_of_another_time_is_set_aside(
    connection: redis.Redis, store: Store, monkeypatch: pytest.MonkeyPatch, age_s: float, reason: str
) -> None:
    """A replay that never aged could be repeated forever."""
    send_once_more(connection, record("a"))
    issued_at = time.time()
    monkeypatch.setattr("time.time", lambda: issued_at + age_s)
    recorder = record_all(connection, store)
    assert count(store) == 0
    monkeypatch.undo()
    assert reason in unreadable_results(connection, 1)[0][0].reason
    assert replay(connection, SECRET) == 1
    recorder.acknowledge(recorder.poll(10))
    assert count(store) == 1, "an operator may replay it again"


def test_a_part_of_a_result_that_is_no_object_is_set_aside(connection: redis.Redis, store: Store) -> None:
    parts = ("event", "record", "device", "granted", "policy")
    others: list[Any] = [[], "x", 1, None, ["device"]]
    for part, torn in itertools.product(parts, others):
        whole: dict[str, Any] = record("a").to_json()
        if part in whole:
            whole[part] = torn
        measured = torn if part == "record" else whole
        event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": measured}
        signed = sign_json(SECRET, "a result", torn if part == "event" else event)
        connection.xadd(STREAM, {redis_names.EVENT_FIELD: signed})
    record_all(connection, store)
    assert connection.xlen(redis_names.UNREADABLE) == len(parts) * len(others)
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
    connection.xadd(STREAM, {redis_names.EVENT_FIELD: text})
    recorder = opened(connection, store, 10)
    batch = recorder.poll(10)
    recorder.acknowledge(batch)
    assert batch.arrivals == []  # not even a lost round: nobody knows whether the round is the writer's
    assert count(store) == 0
    entries: Any = connection.xrange(redis_names.UNREADABLE)
    ((_, kept),) = entries
    assert kept[redis_names.EVENT_FIELD.encode()].decode() == text
    assert b"a result does not carry this fleet's signature" in kept[b"reason"]


def test_an_entry_without_an_event_is_nothing_to_keep(connection: redis.Redis, store: Store) -> None:
    connection.xadd(STREAM, {"other": "field"})
    record_all(connection, store)
    assert connection.xlen(redis_names.UNREADABLE) == 0
    assert connection.xpending(STREAM, redis_names.RECORDER)["pending"] == 0


def test_a_result_of_a_later_version_is_recorded_without_what_it_adds(connection: redis.Redis, store: Store) -> None:
    plain = record("a")
    later = plain.to_json()
    for part in (later, later["device"], later["granted"], later["policy"]):
        part["new_in_a_later_version"] = 1
    event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": later}
    connection.xadd(STREAM, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
    record_all(connection, store)
    assert record_of(store) == plain
    assert connection.xlen(redis_names.UNREADABLE) == 0


def test_thousands_of_results_in_a_row_are_all_committed(connection: redis.Redis, store: Store) -> None:
    send(connection, *(record(f"c{index}") for index in range(2500)))
    recorder = opened(connection, store, 10)
    while count(store) < 2500:
        recorder.acknowledge(recorder.poll(10))
    assert count(store) == 2500
    assert connection.xpending(STREAM, redis_names.RECORDER)["pending"] == 0


def test_a_stream_is_cut_to_what_some_group_still_needs(connection: redis.Redis, store: Store) -> None:
    connection.xgroup_create(STREAM, redis_names.TUNER, id="0", mkstream=True)
    send(connection, *(record(f"c{index}") for index in range(10)))
    recorder = record_all(connection, store)
    trim(connection, recorder, alive=["tune-1"], needed=[])
    assert connection.xlen(STREAM) == 10
    entries = connection.xreadgroup(redis_names.TUNER, "tune-1", {STREAM: ">"}, count=6)
    assert entries
    first: Any = connection.xrange(STREAM, count=4)
    connection.xack(STREAM, redis_names.TUNER, *[entry for entry, _ in first])
    trim(connection, recorder, alive=["tune-1"], needed=[])
    assert connection.xlen(STREAM) == 6


def test_the_stream_of_a_dead_instance_goes_when_it_is_drained_and_unneeded(
    connection: redis.Redis, store: Store
) -> None:
    send(connection, record("a"))
    recorder = opened(connection, store, 10)
    trim(connection, recorder, alive=[], needed=[])
    assert connection.exists(STREAM)
    recorder.acknowledge(recorder.poll(10))
    trim(connection, recorder, alive=[], needed=["tune-1"])
    assert connection.exists(STREAM)
    trim(connection, recorder, alive=[], needed=[])
    assert not connection.exists(STREAM)
    assert not connection.sismember(redis_names.STREAMS, STREAM)
    assert recorder.poll(10).arrivals == []


def test_a_batch_that_is_given_up_becomes_records_of_crashes(connection: redis.Redis, store: Store) -> None:
    shares = ("cpu:1", "cpu:2")
    granted = {share: GrantedShare(share, int(share[-1]), 2, "core", 1, reserved=False) for share in shares}
    write_dead_letters(connection, SECRET, BUILD, None)
    assert not is_marked(connection, DONE, "work1"), "nobody waits for a round that is over"
    write_dead_letters(connection, SECRET, BUILD, RoundPlace(DEVICE, granted))
    record_all(connection, store)
    found = list(store.log.all(RecordFilter()))
    assert {(each.candidate_id, each.share) for each in found} == {
        (candidate, share) for candidate in ("c1", "c2") for share in shares
    }
    assert {(each.status, each.kind) for each in found} == {(Status.CRASHED, Kind.TRIAL)}
    assert is_marked(connection, DONE, "work1")


def test_a_first_candidate_that_is_given_up_becomes_the_trial_that_its_round_waits_for(
    connection: redis.Redis, store: Store
) -> None:
    granted = GrantedShare("cpu:1", 1, 2, "core", 1, reserved=False)
    both = [CandidateItem("c1", "[1]"), CandidateItem("untuned", UNTUNED)]
    round_ = replace(BUILD.round, validates=True)
    work = replace(BUILD, round=round_, purpose=Kind.VALIDATION, candidates=both, shares=["cpu:1"])
    write_dead_letters(connection, SECRET, work, RoundPlace(DEVICE, {"cpu:1": granted}))
    record_all(connection, store)
    (found,) = store.log.all(RecordFilter())
    assert (found.candidate_id, found.kind, found.status) == ("c1", Kind.TRIAL, Status.CRASHED)
    assert found.record_id == record_id(round_.id, "c1", "cpu:1")


def test_what_work_took_is_in_the_ledger_once_though_it_comes_again(connection: redis.Redis, store: Store) -> None:
    event = PieceDone("w1", "job1", "measure", "cpu:1", 2.0, 1.5, 100.0)
    for _ in range(2):
        connection.xadd(redis_names.SERVER_STREAM, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
    for _ in range(2):  # a server that ends before it acknowledges, and its successor
        recorder = Recorder(connection, store.log, SECRET, list)
        pieces = [arrival.event for _ in range(2) for arrival in recorder.poll(10).arrivals]
        assert len(pieces) >= 2
        assert set(pieces) == {event}
        assert store.ledger.spent(["job1"]) == {"job1": [Spending("measure", "cpu:1", 1, 2.0, 1.5)]}


@pytest.mark.parametrize("wrong", [{"cpu_s": -1.0}, {"worked_s": float("nan")}, {"ended_at": "x"}, {"share": None}])
def test_a_piece_that_cannot_be_read_is_set_aside(connection: redis.Redis, store: Store, wrong: dict[str, Any]) -> None:
    whole = {"event": "piece_done", **asdict(WorkCost("w1", "job1", "measure", "cpu:1", 2.0, 1.5, 100.0))}
    event: Any = {name: value for name, value in {**whole, **wrong}.items() if value is not None}
    connection.xadd(redis_names.SERVER_STREAM, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
    recorder = Recorder(connection, store.log, SECRET, list)
    assert [arrival for _ in range(2) for arrival in recorder.poll(10).arrivals] == []
    assert connection.xlen(redis_names.UNREADABLE) == 1
    assert store.ledger.spent(["job1"]) == {}


def test_a_stream_whose_name_nobody_can_read_is_passed_over(connection: redis.Redis, store: Store) -> None:
    connection.sadd(redis_names.STREAMS, b"\xff")
    recorder = opened(connection, store)
    assert recorder.streams == {redis_names.SERVER_STREAM, STREAM}


def test_a_result_whose_delivery_was_lost_is_recorded_all_the_same(store: Store) -> None:
    patient = Retry(ConstantBackoff(0.05), 100)
    with (
        running_redis() as url,
        network_to_redis(url) as (network, far),
        redis.Redis.from_url(url) as near,
        redis.Redis.from_url(far, socket_timeout=2.5, retry=patient) as connection,
    ):
        recorder = Recorder(connection, store.log, SECRET, list)
        ended = threading.Event()

        def turn() -> None:
            """As the engine does."""
            while not ended.is_set():
                try:
                    recorder.acknowledge(recorder.poll(2000))
                except (redis.ConnectionError, redis.TimeoutError):
                    recorder.repeat()

        turning = threading.Thread(target=turn)
        turning.start()
        try:
            wait_until(lambda: blocked(near) == 1)
            network.swallow_answers()
            event: Any = EVENTS[0]
            near.xadd(SERVER_STREAM, {EVENT_FIELD: seal_event(SECRET, event)})
            wait_until(lambda: pending(near) == 1)  # Redis has delivered it, and the recorder did not receive it
            network.mend()
            wait_until(lambda: store.log.count(RecordFilter()) == 1, 15)
            wait_until(lambda: pending(near) == 0)
        finally:
            ended.set()
            turning.join()


def blocked(connection: redis.Redis) -> int:
    """Clients that wait for something to come."""
    found: Any = connection.info("clients")
    return int(found["blocked_clients"])


def pending(connection: redis.Redis) -> int:
    found: Any = connection.xpending(SERVER_STREAM, RECORDER)
    return int(found["pending"])
