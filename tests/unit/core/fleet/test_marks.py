"""Marks and workers' entries on a real Redis."""

from __future__ import annotations

import time

import pytest
import redis

from fractune_core.fleet import marks, redis_names
from fractune_core.fleet.marks import CANCELLED, DONE, HANDED_BACK
from fractune_core.fleet.worker_entries import drop_entry, fleet_facts, put_entry, read_entries


def test_a_mark_is_of_its_kind_alone_and_can_be_taken_away_once(connection: redis.Redis) -> None:
    marks.mark(connection, DONE, "work1")
    assert marks.is_marked(connection, DONE, "work1")
    assert not marks.is_marked(connection, CANCELLED, "work1")
    assert not marks.is_marked(connection, DONE, "work2")
    assert [marks.unmark(connection, DONE, "work1") for _ in range(2)] == [True, False]


def test_marks_are_dropped_when_no_message_that_they_are_about_would_be_opened(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1e9
    monkeypatch.setattr("fractune_core.fleet.marks.time.time", lambda: now)
    monkeypatch.setattr(connection, "time", lambda: (int(now), 0))
    for kind in (DONE, CANCELLED, HANDED_BACK):
        marks.mark(connection, kind, "old")
    now += redis_names.MARK_TTL_S - 1
    marks.mark(connection, DONE, "new")
    marks.drop_old_marks(connection)
    assert all(marks.is_marked(connection, kind, "old") for kind in (DONE, CANCELLED, HANDED_BACK))
    now += 2
    marks.drop_old_marks(connection)
    assert not any(marks.is_marked(connection, kind, "old") for kind in (DONE, CANCELLED, HANDED_BACK))
    assert marks.is_marked(connection, DONE, "new")


def test_marks_are_few_keys_however_many_they_are(connection: redis.Redis) -> None:
    for number in range(1000):
        marks.mark(connection, DONE, f"work{number}")
    assert connection.dbsize() == 1


def test_a_worker_is_there_until_its_entry_expires_or_is_dropped(connection: redis.Redis) -> None:
    for name in ("a", "b", "c"):
        put_entry(connection, name, f"entry of {name}")
    assert 0 < connection.ttl(redis_names.worker_key("a")) <= redis_names.WORKER_TTL_S
    drop_entry(connection, "a")
    assert read_entries(connection) == {"b": b"entry of b", "c": b"entry of c"}
    connection.delete(redis_names.worker_key("b"))  # as it expires
    assert read_entries(connection) == {"c": b"entry of c"}
    assert connection.smembers(redis_names.WORKERS) == {b"c"}, "a name is not asked for again for ever"
    put_entry(connection, "b", "entry of b")
    assert sorted(read_entries(connection)) == ["b", "c"]


def test_a_server_whose_clock_has_jumped_ahead_forgets_nothing(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks.mark(connection, DONE, "work")
    real = time.time
    monkeypatch.setattr("fractune_core.fleet.marks.time.time", lambda: real() + 2 * redis_names.MARK_TTL_S)
    marks.drop_old_marks(connection)
    assert marks.is_marked(connection, DONE, "work")


def test_a_worker_that_says_that_it_lives_is_told_what_it_must_fit(connection: redis.Redis) -> None:
    assert put_entry(connection, "a", "entry of a").protocol is None
    connection.set(redis_names.PROTOCOL_KEY, 7)
    found = put_entry(connection, "a", "entry of a")
    assert found.protocol == "7"
    assert abs(found.now_s - time.time()) < 60
    assert fleet_facts(connection).protocol == "7"
