"""Files on their way through Redis: each is good under its own name alone."""

from __future__ import annotations

import pytest
import redis

from fractune_core.errors import NotFound
from fractune_core.fleet import blobs
from fractune_core.fleet.blobs import get_blob, get_signed_blob, put_blob, put_signed_blob, renew_signed_blob
from fractune_core.fleet.redis_names import blob_key
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
