"""Who is there and may be given work."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from fractune_core.fleet import redis_names
from fractune_core.fleet.signed_messages import seal_worker
from fractune_core.fleet.worker_entries import put_entry
from fractune_server.transport.live_workers import live_workers
from tests.support.fleet_messages import worker_info
from tests.support.secret import SECRET


@pytest.mark.parametrize("protocol", [redis_names.PROTOCOL - 1, redis_names.PROTOCOL + 1, None])
def test_a_worker_that_would_not_understand_gets_no_work(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture, protocol: int | None
) -> None:
    ours = worker_info("ours", 1.0)
    other: Any = {**ours, "name": f"other-{protocol}", "protocol": protocol}
    if protocol is None:  # as workers were before they told
        del other["protocol"]
    for each in (ours, other):
        put_entry(connection, each["name"], seal_worker(SECRET, each))
    for _ in range(3):
        assert list(live_workers(connection, SECRET).workers) == ["ours"]
    assert caplog.text.count(f"worker other-{protocol} gets no work: it uses protocol {protocol}") == 1


def test_a_worker_whose_entry_the_fleet_did_not_sign_is_not_there(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ours = worker_info("ours", 1.0)
    entry = seal_worker(SECRET, ours)
    forged: Any = {**ours, "name": "forged"}
    for name, text in (("ours", entry), ("forged", json.dumps(forged)), ("copied", entry)):
        put_entry(connection, name, text)
    assert list(live_workers(connection, SECRET).workers) == ["ours"]
    for name in ("forged", "copied"):
        assert f"worker {name} gets no work: the entry of worker {name} does not carry" in caplog.text
