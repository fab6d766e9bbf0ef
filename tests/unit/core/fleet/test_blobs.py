"""Files on their way through Redis: each is good under its own name alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fractune_core.errors import NotFound
from fractune_core.fleet import blobs
from fractune_core.fleet.blobs import (
    get_blob,
    get_signed_blob,
    get_signed_file,
    put_blob,
    put_signed_blob,
    put_signed_file,
    renew_signed_blob,
)
from fractune_core.fleet.redis_names import BLOB_TTL_S, RELEASED_BLOB_TTL_S, blob_key
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
