"""What is kept of results that cannot be read, on a real Redis: bounded by their number and by their bytes."""

from __future__ import annotations

import pytest
import redis

from fractune_core.fleet.redis_names import UNREADABLE
from fractune_server.transport import unreadable as module
from fractune_server.transport.unreadable import UnreadableStream, unreadable_results


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
