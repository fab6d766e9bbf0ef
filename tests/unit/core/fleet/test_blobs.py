"""Files on their way through Redis: each is good under its own name alone."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fractune_core.errors import NotFound
from fractune_core.fleet import blobs, redis_names, redis_state
from fractune_core.fleet.blobs import (
    get_blob,
    get_signed_blob,
    get_signed_file,
    put_blob,
    put_signed_blob,
    put_signed_file,
    renew_signed_blob,
)
from fractune_core.fleet.messages import CPU_BATCH, CUDA_BATCH, build_batch
from fractune_core.fleet.redis_names import BLOB_TTL_S, RELEASED_BLOB_TTL_S, blob_key
from fractune_core.fleet.redis_state import (
    CANCELLED,
    DONE,
    HANDED_BACK,
    SECS_BOUNDS,
    bucket_of,
    drop_entry,
    fleet_facts,
    put_entry,
    read_entries,
)
from fractune_core.fleet.signed_messages import Unsigned
from tests.support.secret import SECRET


def test_a_file_under_another_name_is_not_read(connection: redis.Redis) -> None:
    put_signed_blob(connection, SECRET, "artifact:one", b"code")
    assert get_signed_blob(connection, SECRET, "artifact:one") == b"code"
    connection.rename(blob_key("artifact:one"), blob_key("artifact:two"))
    with pytest.raises(Unsigned, match="blob artifact:two does not carry this fleet's signature"):
        get_signed_blob(connection, SECRET, "artifact:two")


def test_a_file_without_this_fleets_signature_is_not_kept(connection: redis.Redis) -> None:
    """Older versions stored workloads unsigned: the server replaces them."""
    put_blob(connection, "workload:w", b"{}")
    assert not renew_signed_blob(connection, SECRET, "workload:w")
    put_signed_blob(connection, b"another secret", "workload:w", b"{}")
    assert not renew_signed_blob(connection, SECRET, "workload:w")
    put_signed_blob(connection, SECRET, "workload:w", b"{}")
    assert renew_signed_blob(connection, SECRET, "workload:w")
    assert not renew_signed_blob(connection, SECRET, "workload:gone")


@pytest.mark.parametrize("before", ["llen", "lrange"])
def test_a_file_that_expires_while_it_is_read_is_not_found(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 2)
    put_blob(connection, "artifact:one", b"code")
    command = getattr(connection, before)

    def then_expired(*args: object) -> object:
        answer = command(*args)
        connection.delete(blob_key("artifact:one"))
        return answer

    monkeypatch.setattr(connection, before, then_expired)
    with pytest.raises(NotFound, match="blob 'artifact:one' is not in Redis; it may have expired"):
        get_blob(connection, "artifact:one")


def test_a_signed_file_goes_piece_by_piece(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 3)
    name, sent, found = "bundle:b", tmp_path / "sent", tmp_path / "found"
    sent.write_bytes(bytes(range(50)))
    put_signed_blob(connection, SECRET, name, b"another")
    put_signed_file(connection, SECRET, name, sent)
    assert connection.llen(blob_key(name)) > 10
    assert 0 < connection.ttl(blob_key(name)) <= BLOB_TTL_S
    assert [key for key in connection.scan_iter() if b"bundle:b." in key] == []
    get_signed_file(connection, SECRET, name, found)
    assert found.read_bytes() == get_signed_blob(connection, SECRET, name) == sent.read_bytes()
    found.unlink()
    connection.lset(blob_key(name), 5, "xyz")
    with pytest.raises(Unsigned):
        get_signed_file(connection, SECRET, name, found)
    assert not found.exists()
    assert not renew_signed_blob(connection, SECRET, name)
    with pytest.raises(NotFound):
        get_signed_file(connection, SECRET, "bundle:gone", found)
    assert not found.exists()


def test_a_writer_that_fails_leaves_the_file_as_it_was(connection: redis.Redis) -> None:
    def torn() -> Iterator[bytes]:
        yield b"a"
        raise OSError(5, "torn")

    put_blob(connection, "model:m", [b"be", b"fore"])
    with pytest.raises(OSError, match="torn"):
        put_blob(connection, "model:m", torn())
    assert get_blob(connection, "model:m") == b"before"
    left = [key for key in connection.scan_iter() if b"model:m." in key]
    assert [0 < connection.ttl(key) <= RELEASED_BLOB_TTL_S for key in left] == [True]


def test_a_mark_is_of_its_kind_alone_and_can_be_taken_away_once(connection: redis.Redis) -> None:
    redis_state.mark(connection, DONE, "work1")
    assert redis_state.is_marked(connection, DONE, "work1")
    assert not redis_state.is_marked(connection, CANCELLED, "work1")
    assert not redis_state.is_marked(connection, DONE, "work2")
    assert [redis_state.unmark(connection, DONE, "work1") for _ in range(2)] == [True, False]


def test_marks_are_dropped_when_no_message_that_they_are_about_would_be_opened(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1e9
    monkeypatch.setattr("fractune_core.fleet.redis_state.time.time", lambda: now)
    monkeypatch.setattr(connection, "time", lambda: (int(now), 0))
    for kind in (DONE, CANCELLED, HANDED_BACK):
        redis_state.mark(connection, kind, "old")
    now += redis_names.MARK_TTL_S - 1
    redis_state.mark(connection, DONE, "new")
    redis_state.drop_old_marks(connection)
    assert all(redis_state.is_marked(connection, kind, "old") for kind in (DONE, CANCELLED, HANDED_BACK))
    now += 2
    redis_state.drop_old_marks(connection)
    assert not any(redis_state.is_marked(connection, kind, "old") for kind in (DONE, CANCELLED, HANDED_BACK))
    assert redis_state.is_marked(connection, DONE, "new")


def test_marks_are_few_keys_however_many_they_are(connection: redis.Redis) -> None:
    for number in range(1000):
        redis_state.mark(connection, DONE, f"work{number}")
    assert connection.dbsize() == 1


def test_a_worker_is_there_until_its_entry_expires_or_is_dropped(connection: redis.Redis) -> None:
    for name in ("a", "b", "c"):
        put_entry(connection, name, f"entry of {name}")
    assert 0 < connection.ttl(redis_state.worker_key("a")) <= redis_names.WORKER_TTL_S
    drop_entry(connection, "a")
    assert read_entries(connection) == {"b": b"entry of b", "c": b"entry of c"}
    connection.delete(redis_state.worker_key("b"))  # as it expires
    assert read_entries(connection) == {"c": b"entry of c"}
    assert connection.smembers(redis_names.WORKERS) == {b"c"}, "a name is not asked for again for ever"
    put_entry(connection, "b", "entry of b")
    assert sorted(read_entries(connection)) == ["b", "c"]


def test_a_server_whose_clock_has_jumped_ahead_forgets_nothing(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_state.mark(connection, DONE, "work")
    real = time.time
    monkeypatch.setattr("fractune_core.fleet.redis_state.time.time", lambda: real() + 2 * redis_names.MARK_TTL_S)
    redis_state.drop_old_marks(connection)
    assert redis_state.is_marked(connection, DONE, "work")


def test_a_worker_that_says_that_it_lives_is_told_what_it_must_fit(connection: redis.Redis) -> None:
    assert put_entry(connection, "a", "entry of a").protocol is None
    connection.set(redis_names.PROTOCOL_KEY, 7)
    found = put_entry(connection, "a", "entry of a")
    assert found.protocol == "7"
    assert abs(found.now_s - time.time()) < 60
    assert fleet_facts(connection).protocol == "7"


def test_builds_for_a_gpu_are_spread_over_more_builders() -> None:
    assert build_batch('{"arch":"sm_90","kind":"cuda"}') == CUDA_BATCH < CPU_BATCH
    assert build_batch('{"kind":"llvm","mcpu":"znver4"}') == CPU_BATCH


def test_a_duration_is_in_the_first_bucket_that_holds_it() -> None:
    assert [bucket_of(secs) for secs in (0.0, 0.005, 0.0051, 1e9)] == ["0.005", "0.005", "0.01", "inf"]
    assert list(SECS_BOUNDS) == sorted(SECS_BOUNDS)
