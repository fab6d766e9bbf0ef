"""The entries of live workers in Redis: each a key that expires by Redis's own clock, all named in one set.

So the keys of Redis need no scan, and hosts with different clocks keep no dead worker alive.
"""

import math
from typing import Any, NamedTuple, cast

from fractune_core.fleet.redis_connection import redis_time_s
from fractune_core.fleet.redis_names import PROTOCOL_KEY, WORKER_TTL_S, WORKERS, worker_key

SCHEDULE_TO_START = "schedule_to_start"
"""seconds from the moment that a piece of work was queued until a worker began it, by what it is (`Work.task`)"""
WORK_DURATION = "work_duration"
"""seconds that it took from then on, without waits for locks, by what it is"""
GATE_WAIT = "gate_wait"
"""seconds that it waited for cores or a GPU, by what it is"""
REMEASURED = "remeasured"
"""how often a batch was measured again, because the machine had changed under it, by share"""
FAULT_EPOCHS = "fault_epochs"
"""how often a GPU was opened again after a fault that its clients had shared; without a label"""

SECS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, math.inf)
"""upper bounds of the buckets into which durations are counted"""
SUM = "sum"
COUNT = "count"


class CountKey(NamedTuple):
    """The meaning of one count."""

    name: str
    """one of the names above"""
    label: str
    field: str
    """COUNT; of a duration SUM (seconds), or the bucket by its upper bound, as text: how many were in this one alone"""


def bucket_of(secs: float) -> str:
    """The field of the bucket for a duration."""
    return str(next(bound for bound in SECS_BOUNDS if secs <= bound))


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
