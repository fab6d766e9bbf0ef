"""Work is good for one queue, one job of RQ's and a time; entries of workers for one name."""

import hashlib
import hmac
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fractune_core.codec.plain_json import to_dict
from fractune_core.fleet.messages import TimeModelWork, WorkFailed
from fractune_core.fleet.redis_names import BUILD_QUEUE, CLOCK_TOLERANCE_S, COMPILE_QUEUE, MARK_TTL_S, WORK_MAX_AGE_S
from fractune_core.fleet.signed_messages import (
    Refused,
    Unsigned,
    open_event,
    open_replayed,
    open_signed,
    open_signed_json,
    open_work,
    open_worker,
    seal_event,
    seal_work,
    seal_worker,
    sign,
    sign_json,
)
from tests.support.fleet_messages import worker_info

WORK = TimeModelWork(work_id="w1", job="j1", tenant="default", share="cpu:1", bundle="b")
WRITTEN = to_dict(WORK)
NOW_S = 1_000_000_000.0


def seal_at(time_s: float, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("time.time", lambda: time_s)
    message = seal_work(b"ours", COMPILE_QUEUE, WORK)
    monkeypatch.setattr("time.time", lambda: NOW_S)
    return message


def test_work_comes_out_as_it_went_in() -> None:
    assert open_work(b"ours", COMPILE_QUEUE, "w1", seal_work(b"ours", COMPILE_QUEUE, WORK)) == WORK


def test_work_of_another_secret_queue_or_job_is_refused() -> None:
    message = seal_work(b"ours", COMPILE_QUEUE, WORK)
    with pytest.raises(Refused, match="does not carry this fleet's signature"):
        open_work(b"theirs", COMPILE_QUEUE, "w1", message)
    with pytest.raises(Refused, match=f"work on the queue {BUILD_QUEUE} does not carry"):
        open_work(b"ours", BUILD_QUEUE, "w1", message)
    with pytest.raises(Refused, match="of work w1 and came in another job"):
        open_work(b"ours", COMPILE_QUEUE, "w2", message)


@pytest.mark.parametrize("age_s", [WORK_MAX_AGE_S - 1, 0, -CLOCK_TOLERANCE_S + 1])
def test_work_may_wait_for_hours_and_clocks_may_differ(age_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_work(b"ours", COMPILE_QUEUE, "w1", seal_at(NOW_S - age_s, monkeypatch)) == WORK


@pytest.mark.parametrize(
    ("age_s", "reason"),
    [
        (WORK_MAX_AGE_S + 1, "queued 24.0 h ago, and work is good for 24 h"),
        (-CLOCK_TOLERANCE_S - 1, "1.0 h in the future"),
    ],
)
def test_old_work_and_work_of_the_future_is_refused(age_s: float, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=reason):
        open_work(b"ours", COMPILE_QUEUE, "w1", seal_at(NOW_S - age_s, monkeypatch))


def test_a_mark_of_done_work_outlives_every_copy_of_the_work() -> None:
    """Sent by a clock that is ahead by what is allowed, opened by one that is as far behind."""
    assert WORK_MAX_AGE_S + 2 * CLOCK_TOLERANCE_S <= MARK_TTL_S


def test_a_result_is_no_work_and_an_entry_is_good_for_its_worker_alone() -> None:
    failed = WorkFailed(job="j", task="build", error="E", message="m")
    assert open_event(b"ours", seal_event(b"ours", failed)) == to_dict(failed)
    with pytest.raises(Unsigned):
        open_event(b"ours", seal_work(b"ours", COMPILE_QUEUE, WORK))
    info = worker_info("builder-1", 1.0)
    entry = seal_worker(b"ours", info)
    assert open_worker(b"ours", "builder-1", entry) == info
    with pytest.raises(Unsigned, match="the entry of worker builder-2 does not carry"):
        open_worker(b"ours", "builder-2", entry)


@pytest.mark.parametrize(
    "whole",
    [
        5,
        {},
        {"work": WRITTEN},
        {"work": WRITTEN, "issued_at": None},
        {"work": [], "issued_at": NOW_S},
        {"work": {}, "issued_at": NOW_S},
        {"work": {**WRITTEN, "task": []}, "issued_at": NOW_S},
        {"work": {**WRITTEN, "job": 5}, "issued_at": NOW_S},
        {"work": {"task": "time_model", "work_id": "w1"}, "issued_at": NOW_S},
    ],
)
def test_what_the_fleet_signed_and_nobody_here_can_read_is_refused(whole: Any) -> None:
    message = sign_json(b"ours", f"work on the queue {COMPILE_QUEUE}", whole)
    with pytest.raises(Refused, match=r"no part here can read it .*of another version"):
        open_work(b"ours", COMPILE_QUEUE, "w1", message)


@pytest.mark.parametrize("changes", [{"task": "dig"}, {"task": ["dig"]}, {"share": None}, {"bundle": ["b"]}])
def test_work_that_no_worker_could_do_is_refused(changes: dict[str, Any]) -> None:
    """On both sides: a worker's traceback would be all that is heard of it."""
    written = {"work": WRITTEN | changes, "issued_at": time.time()}
    message = sign_json(b"ours", f"work on the queue {COMPILE_QUEUE}", written)
    with pytest.raises(Refused, match="no part here can read it"):
        open_work(b"ours", COMPILE_QUEUE, "w1", message)


def test_work_whose_time_is_no_number_is_refused() -> None:
    message = sign_json(b"ours", f"work on the queue {COMPILE_QUEUE}", {"work": WORK, "issued_at": float("nan")})
    with pytest.raises(Refused, match="queued"):
        open_work(b"ours", COMPILE_QUEUE, "w1", message)


def test_a_signed_result_or_replay_that_is_none_is_refused_as_unsigned() -> None:
    times = ({"event": "e", "issued_at": time} for time in ("y", math.nan, math.inf, -math.inf, 10**400))
    for value in ({}, 5, [], *times, {"event": 5}, "\ud800"):
        with pytest.raises(Unsigned):
            open_replayed(b"ours", sign_json(b"ours", "a result that somebody had read once more", value))
    for value in (None, 5, [], "text"):
        with pytest.raises(Unsigned):
            open_event(b"ours", sign_json(b"ours", "a result", value))


PURPOSE = "a test"


@given(st.binary(max_size=200), st.binary(min_size=1), st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_what_was_signed_opens_with_the_same_secret_for_the_same_purpose(
    payload: bytes, secret: bytes, purpose: str
) -> None:
    assert open_signed(secret, purpose, sign(secret, purpose, payload)) == payload


@given(st.binary(max_size=200), st.integers(0, 500))
def test_a_changed_byte_another_secret_or_another_purpose_does_not(payload: bytes, where: int) -> None:
    signed = bytearray(sign(b"ours", PURPOSE, payload))
    with pytest.raises(Unsigned, match="a test does not carry"):
        open_signed(b"theirs", PURPOSE, bytes(signed))
    with pytest.raises(Unsigned, match="another does not carry"):
        open_signed(b"ours", "another", bytes(signed))
    signed[where % len(signed)] ^= 1
    with pytest.raises(Unsigned):
        open_signed(b"ours", PURPOSE, bytes(signed))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_json_opens_as_it_was(value: object) -> None:
    signed = sign_json(b"ours", PURPOSE, value)
    assert open_signed_json(b"ours", PURPOSE, signed) == open_signed_json(b"ours", PURPOSE, signed.encode()) == value
    for secret, purpose in ((b"theirs", PURPOSE), (b"ours", "another")):
        with pytest.raises(Unsigned):
            open_signed_json(secret, purpose, signed)


@given(st.text(max_size=120) | st.binary(max_size=120))
def test_what_is_no_message_is_unsigned(text: str | bytes) -> None:
    with pytest.raises(Unsigned):
        open_signed_json(b"ours", PURPOSE, text)


def test_a_message_whose_text_was_altered_is_unsigned() -> None:
    signed = sign_json(b"ours", PURPOSE, {"n": 1})
    assert signed.endswith(json.dumps({"n": 1}))
    for altered in (signed.replace("1}", "2}"), signed.upper(), signed[65:], f"{signed} ", signed.replace(" ", "", 1)):
        with pytest.raises(Unsigned):
            open_signed_json(b"ours", PURPOSE, altered)


@pytest.mark.parametrize("text", [b"", b"no JSON", b"\xff", b"[" * 100_000])
def test_signed_text_that_is_no_json_is_refused_as_unsigned(text: bytes) -> None:
    digest = hmac.digest(b"ours", PURPOSE.encode() + b"\0" + text, hashlib.sha256)
    with pytest.raises(Unsigned, match="cannot be read"):
        open_signed_json(b"ours", PURPOSE, digest.hex().encode() + b" " + text)
