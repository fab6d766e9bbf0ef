"""What a worker of the fleet sends is of the shape that its kind has: the engine would end over anything else."""

import hashlib
import hmac
from dataclasses import MISSING, fields
from typing import Any

import pytest
import redis

from fractune_core.codec.plain_json import from_json
from fractune_core.fleet.messages import EVENT_BY_KIND
from fractune_core.fleet.redis_names import UNREADABLE
from fractune_core.fleet.signed_messages import sign_json
from fractune_server.transport import unreadable as module
from fractune_server.transport.live_workers import open_entries
from fractune_server.transport.recorder import Unreadable, read_event
from fractune_server.transport.unreadable import UnreadableStream, unreadable_results
from tests.support.fuzz.sealed import EVENTS, WORKER
from tests.support.secret import SECRET

MEASURED = EVENTS[0]
RECORD: dict[str, Any] = MEASURED["record"]


def test_every_kind_of_event_is_read() -> None:
    for event in EVENTS:
        assert read_event(event).event == from_json(EVENT_BY_KIND[event["event"]], event)
    assert {event["event"] for event in EVENTS} == set(EVENT_BY_KIND)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["event"])
def test_an_event_that_lacks_something_is_not(event: dict[str, Any]) -> None:
    needed = {field.name for field in fields(EVENT_BY_KIND[event["event"]]) if field.default is MISSING}
    assert needed <= event.keys()
    for name in needed:
        with pytest.raises(Unreadable):
            read_event({key: value for key, value in event.items() if key != name})


def test_what_is_no_event_is_not_read() -> None:
    others: list[Any] = [None, [], "measured", {}, {"event": "unheard of"}, {"event": ["measured"]}]
    for event in others:
        with pytest.raises(Unreadable):
            read_event(event)


@pytest.mark.parametrize(
    "changes",
    [
        {"record_id": {"a": 1}},
        {"operator": "half a character: \ud800"},
        {"neighbours": 2**63},
        {"neighbours": 2**31},
        {"disturbance": {**RECORD["disturbance"], "clock_mhz": 2**31}},
        {"record_id": "r" * 65},
        {"share": " " * 60 + "cpu:2"},
        {"measured_at": float("nan")},
        {"measured_at": 1e300},
        {"run_secs": [1.0, float("nan")]},
        {"granted": {**RECORD["granted"], "share": "cpu"}},
        {"granted": {**RECORD["granted"], "units": 2**40}},
        {"granted": {**RECORD["granted"], "units_total": 0}},
        {"policy": {**RECORD["policy"], "repeats": "9"}},
    ],
)
def test_a_record_that_no_log_could_hold_or_tell_is_not_read(changes: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        read_event({**MEASURED, "record": {**RECORD, **changes}})


@pytest.mark.parametrize(
    "changes", [{"variant": "cpu:9"}, {"threads": 2**31}, {"latency_secs": [0.0]}, {"loop_secs": None}]
)
def test_times_at_load_that_no_worker_measures_are_not_read(changes: dict[str, Any]) -> None:
    timed: Any = next(event for event in EVENTS if event["event"] == "model_timed")
    wrong: Any = {**timed, "at_load": [{**timed["at_load"][0], **changes}]}
    with pytest.raises(Unreadable):
        read_event(wrong)


@pytest.mark.parametrize(
    "changes",
    [
        *({"secs": secs} for secs in (-1.0, None, 1.7e308)),
        *({"calls": calls} for calls in (2**31, -1)),
        *({"name": "a\nb"}, {"name": "n" * 2000}, {"candidate": "c" * 2000}),
        *({"workload_hash": "\x1b[2J"}, {"workload_hash": "0" * 2000}),
    ],
)
def test_calls_inside_a_model_that_no_worker_times_are_not_read(changes: dict[str, Any]) -> None:
    timed: Any = next(event for event in EVENTS if event["event"] == "model_timed")
    call = timed["inside"]["calls"][0]
    for calls in ([{**call, **changes}], [call] * 201):
        with pytest.raises(Unreadable):
            read_event({**timed, "inside": {**timed["inside"], "calls": calls}})
    read_event({**timed, "inside": None})


@pytest.mark.parametrize("amount", [0.0, 5e-324, -1.0, float("nan"), float("inf"), 1e300])
def test_a_time_of_a_model_that_no_clock_shows_is_not_read(amount: float) -> None:
    timed: Any = next(event for event in EVENTS if event["event"] == "model_timed")
    for name in ("whole_s", "clocked_s"):
        with pytest.raises(Unreadable):
            read_event({**timed, "inside": {**timed["inside"], name: amount}})


@pytest.mark.parametrize(
    "changes",
    [
        {"run_secs": {"untuned": []}},
        {"run_secs": {"untuned": [1.0], "cpu:1": []}},
        {"run_secs": {"cpu:1": [1.0]}, "at_load": []},
        *(
            {"run_secs": {"cpu:1": [1.0]}, "at_load": [], "untuned_sum_s": secs}
            for secs in (float("nan"), float("inf"), -1.0, 0.0)
        ),
        {"run_secs": {}, "at_load": [], "untuned_sum_s": 1.0},
        *({"run_secs": {"untuned": [1.0, secs]}} for secs in (float("nan"), float("inf"), -1.0, 0.0)),
        *({"max_error": {"untuned": error}} for error in (float("nan"), float("inf"), -1.0)),
    ],
)
def test_times_of_variants_that_a_job_could_not_end_with_are_not_read(changes: dict[str, Any]) -> None:
    """The engine takes their medians, compares each with the untuned one's, and a database holds them as JSON."""
    timed: Any = next(event for event in EVENTS if event["event"] == "model_timed")
    with pytest.raises(Unreadable):
        read_event({**timed, **changes})


def test_an_untuned_variant_that_was_too_slow_has_the_time_of_its_operators() -> None:
    timed: Any = next(event for event in EVENTS if event["event"] == "model_timed")
    read_event({**timed, "run_secs": {"cpu:1": [1.0]}, "max_error": {}, "at_load": [], "untuned_sum_s": 18.0})


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -1.0])
def test_an_amount_that_a_database_does_not_hold_is_not_read(amount: float) -> None:
    by_kind = {event["event"]: event for event in EVENTS}
    measured: Any = by_kind["roof_measured"]
    roof: Any = {**measured, "roof": {**measured["roof"], "gflops": amount}}
    floor: Any = {**measured, "roof": {**measured["roof"], "launch_s": amount}}
    timed: Any = by_kind["model_timed"]
    slow: Any = {**timed, "run_secs": {**timed["run_secs"], "untuned": [1.0, amount]}}
    wrong: Any = {**timed, "max_error": {"untuned": amount}}
    ingested: Any = by_kind["ingested"]
    ingested = {**ingested, "operators": [{**ingested["operators"][0], "flops": amount}]}
    for event in (roof, floor, slow, wrong, ingested):
        with pytest.raises(Unreadable):
            read_event(event)


def test_a_target_that_no_worker_may_use_is_not_read() -> None:
    ingested: Any = next(event for event in EVENTS if event["event"] == "ingested")
    wrong: Any = {**ingested, "target": '{"kind":"llvm","cl-opt":["-print-after-all:bool=1"]}'}
    read_event(ingested)
    with pytest.raises(Unreadable, match="has no 'cl-opt'"):
        read_event(wrong)


def entry(changes: dict[str, Any]) -> dict[str, bytes]:
    return {"w": sign_json(SECRET, "the entry of worker w", {**WORKER, **changes}).encode()}


@pytest.mark.parametrize(
    "changes",
    [
        {"role": None},
        {"started_at": float("inf")},
        {"started_at": 1e300},
        {"device": {"kind": "cpu"}},
        {"granted": {}},
        {"granted": {**WORKER["granted"], "share": "none of ours"}},
        {"device": {**WORKER["device"], "units": 2**40}},
        {"pid": "7"},
        {"pid": 2**40},
        {"counts": [["a", "b", "c", "1"]]},
        {"counts": [["a", "b", "c", float("inf")]]},
    ],
)
def test_the_entry_of_a_worker_that_could_not_be_told_is_left_out(changes: dict[str, Any]) -> None:
    assert list(open_entries(SECRET, entry({})).workers) == ["w"]
    assert not open_entries(SECRET, entry(changes)).workers


def test_what_is_said_of_an_entry_can_be_written_to_any_log(caplog: pytest.LogCaptureFixture) -> None:
    assert not open_entries(SECRET, entry({"protocol": "\ud800"})).workers
    assert caplog.text.encode()


def test_an_entry_that_is_nested_too_deeply_is_left_out() -> None:
    purpose, text = b"the entry of worker w", b"[" * 100_000
    digest = hmac.digest(SECRET, purpose + b"\0" + text, hashlib.sha256)
    assert not open_entries(SECRET, {"w": digest.hex().encode() + b" " + text}).workers


@pytest.mark.parametrize("changes", [{"workload_hash": "0" * 64}, {"workload_hash": "f" * 16}, {"workload": "[1]"}])
def test_an_operator_with_the_name_of_another_text_is_refused(changes: dict[str, str]) -> None:
    event = next(event for event in EVENTS if event["event"] == "ingested")
    (item,) = event["operators"]
    wrong: Any = {**event, "operators": [item, {**item, **changes}]}
    with pytest.raises(Unreadable, match="workload"):
        read_event(wrong)


def kept(connection: redis.Redis) -> list[str]:
    return [result.place for result in unreadable_results(connection, 1000)[0]]


def test_the_oldest_go_when_all_together_have_too_many_bytes(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 10_000)
    stream = UnreadableStream(connection)
    for number in range(100):
        stream.keep(str(number), b"x" * 4000, "why")
    assert kept(connection) == ["99", "98"]
    stream.keep("a", b"x" * 8000, "why")
    assert kept(connection) == ["a"]


def test_the_oldest_go_when_they_are_too_many(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    stream = UnreadableStream(connection)
    for number in range(10):
        stream.keep(str(number), b"x", "why")
    assert kept(connection) == ["9", "8", "7"]


def test_the_next_server_counts_what_is_there(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    for number in range(9):
        UnreadableStream(connection).keep(str(number), b"x" * 4000, "why")
    monkeypatch.setattr(module, "_MOST_BYTES", 10_000)
    UnreadableStream(connection).keep("next", b"x", "why")
    assert kept(connection) == ["next", "8", "7"]


def test_a_result_that_is_too_large_leaves_its_reason(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES_OF_ONE", 1000)
    UnreadableStream(connection).keep("here", b"x" * 1001, "why")
    ((found,), count) = unreadable_results(connection, 10)
    assert (found.event, found.reason, count) == ("", "why (1,001 bytes, which are too many to keep)", 1)


def test_what_was_replayed_meanwhile_is_no_matter(connection: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 10_000)
    stream = UnreadableStream(connection)
    stream.keep("a", b"x" * 4000, "why")
    connection.delete(UNREADABLE)
    for name in "bcd":
        stream.keep(name, b"x" * 4000, "why")
    assert kept(connection) == ["d", "c"]
