"""Answers of Redis that the network has lost: what was asked for has been done all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from fractune_core.messages import EVENT_FIELD, SERVER_STREAM
from fractune_core.signed_messages import seal_event
from fractune_server.store.filters import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.recorder import Recorder
from tests.support.fuzz.sealed import EVENTS
from tests.support.processes.network import network_to_redis
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.secret import SECRET


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(sqlite_url(tmp_path))
    yield made
    made.close()


def test_a_result_whose_delivery_was_lost_is_recorded_all_the_same(store: Store) -> None:
    patient = Retry(ConstantBackoff(0.05), 100)
    with (
        running_redis() as url,
        network_to_redis(url) as (network, far),
        redis.Redis.from_url(url) as near,
        redis.Redis.from_url(far, socket_timeout=0.3, retry=patient) as connection,
    ):
        recorder = Recorder(connection, store.log, SECRET)
        for _ in range(3):
            recorder.acknowledge(recorder.poll(10))
        event: Any = EVENTS[0]
        near.xadd(SERVER_STREAM, {EVENT_FIELD: seal_event(SECRET, event)})
        network.swallow_answers()
        mending = threading.Timer(1.0, network.mend)
        mending.start()

        def is_recorded() -> bool:
            """A turn of the engine."""
            try:
                recorder.acknowledge(recorder.poll(10))
            except (redis.ConnectionError, redis.TimeoutError):
                recorder.repeat()
            return store.log.count(RecordFilter()) == 1

        wait_until(is_recorded, 20)
        mending.join()
