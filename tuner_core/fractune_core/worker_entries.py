"""The entries of live workers in Redis: each a key that expires by Redis's own clock, all named in one set.

So nobody looks through the keys of Redis to find them, and clocks of hosts that differ keep no dead worker alive.
"""

from __future__ import annotations

from typing import Any, cast

from fractune_core.messages import WORKER_TTL_S, WORKERS, worker_key


def put_entry(redis: Any, name: str, entry: str) -> None:
    """Say that the worker lives; `entry` is its WorkerInfo, sealed. To be said again within WORKER_TTL_S."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.sadd(WORKERS, name)
        pipe.set(worker_key(name), entry, ex=WORKER_TTL_S)
        pipe.execute()


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
