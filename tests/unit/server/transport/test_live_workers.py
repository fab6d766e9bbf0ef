"""Who is there and may be given work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from fractune_core.codec.plain_json import to_dict, write_json
from fractune_core.fleet import redis_names
from fractune_core.fleet.signed_messages import seal_worker, sign_json
from fractune_core.fleet.worker_entries import put_entry
from fractune_server.transport.live_workers import live_workers
from tests.support.fleet_messages import worker_info
from tests.support.secret import SECRET


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
