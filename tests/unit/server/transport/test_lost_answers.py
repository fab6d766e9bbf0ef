"""Answers of Redis that the network has lost: what was asked for has been done all the same."""

from __future__ import annotations

import threading
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from fractune_core.fleet.redis_names import EVENT_FIELD, RECORDER, SERVER_STREAM
from fractune_core.fleet.signed_messages import seal_event
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store
from fractune_server.transport.recorder import Recorder
from tests.support.fuzz.sealed import EVENTS
from tests.support.processes.network import network_to_redis
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.secret import SECRET


def test_a_result_whose_delivery_was_lost_is_recorded_all_the_same(store: Store) -> None:
    patient = Retry(ConstantBackoff(0.05), 100)
    with (
        running_redis() as url,
        network_to_redis(url) as (network, far),
        redis.Redis.from_url(url) as near,
        redis.Redis.from_url(far, socket_timeout=2.5, retry=patient) as connection,
    ):
        recorder = Recorder(connection, store.log, SECRET, list)
        ended = threading.Event()

        def turn() -> None:
            """As the engine does."""
            while not ended.is_set():
                try:
                    recorder.acknowledge(recorder.poll(2000))
                except (redis.ConnectionError, redis.TimeoutError):
                    recorder.repeat()

        turning = threading.Thread(target=turn)
        turning.start()
        try:
            wait_until(lambda: blocked(near) == 1)
            network.swallow_answers()
            event: Any = EVENTS[0]
            near.xadd(SERVER_STREAM, {EVENT_FIELD: seal_event(SECRET, event)})
            wait_until(lambda: pending(near) == 1)  # it is delivered, and nobody has it
            network.mend()
            wait_until(lambda: store.log.count(RecordFilter()) == 1, 15)
            wait_until(lambda: pending(near) == 0)
        finally:
            ended.set()
            turning.join()


def blocked(connection: redis.Redis) -> int:
    """Clients that wait for something to come."""
    found: Any = connection.info("clients")
    return int(found["blocked_clients"])


def pending(connection: redis.Redis) -> int:
    found: Any = connection.xpending(SERVER_STREAM, RECORDER)
    return int(found["pending"])
