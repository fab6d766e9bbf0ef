"""The entries of live workers in Redis: each a key that expires by Redis's own clock, all named in one set.

So the keys of Redis need no scan, and hosts with different clocks keep no dead worker alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from fractune_core.fleet.redis_connection import redis_time_s
from fractune_core.fleet.redis_names import PROTOCOL_KEY, WORKER_TTL_S, WORKERS, worker_key


class FleetFacts(NamedTuple):
    """The server's protocol and secret, which a worker must share, as Redis holds them."""

    protocol: str | None
    """the server's; None = none has come yet"""
    now_s: float
    """seconds since 1970"""


def put_entry(redis: Any, name: str, entry: str) -> FleetFacts:
    """Say that the worker lives; `entry` is its WorkerInfo, sealed. To be said again within WORKER_TTL_S."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.sadd(WORKERS, name)
        pipe.set(worker_key(name), entry, ex=WORKER_TTL_S)
        pipe.get(PROTOCOL_KEY)
        pipe.time()
        *_, protocol, now = pipe.execute()
    return FleetFacts(None if protocol is None else protocol.decode(errors="replace"), redis_time_s(now))


def fleet_facts(redis: Any) -> FleetFacts:
    """The same, before a worker says that it lives."""
    protocol = redis.get(PROTOCOL_KEY)
    return FleetFacts(None if protocol is None else protocol.decode(errors="replace"), redis_time_s(redis.time()))


def drop_entry(redis: Any, name: str) -> None:
    """Say that the worker has ended."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.delete(worker_key(name))
        pipe.srem(WORKERS, name)
        pipe.execute()


def read_entries(redis: Any) -> dict[str, bytes]:
    """The sealed entries of all live workers by name; names whose entry has expired are forgotten."""
    names = sorted(name.decode(errors="replace") for name in redis.smembers(WORKERS))
    found = cast("list[bytes | None]", redis.mget([worker_key(name) for name in names]) if names else [])
    entries = dict(zip(names, found, strict=True))
    gone = [name for name, entry in entries.items() if entry is None]
    if gone:  # one that lives after all says so within the second
        redis.srem(WORKERS, *gone)
    return {name: entry for name, entry in entries.items() if entry is not None}
