"""The state of a fleet in Redis beside its queues and streams: the entries of live workers, marks on work, and Redis's
clock, which all parts see.

An entry is a key that expires by Redis's own clock, and all are named in one set. So the keys of Redis need no scan,
and hosts with different clocks keep no dead worker alive. Marks of a kind are one sorted set, however much work there
was, by the time when a mark may go. A mark outlives every message that it is about.

Work is dated by one part and judged by another, so their clocks must not differ by more than `CLOCK_TOLERANCE_S`. A
part that is off by half of that from Redis's clock ends, and names the difference.
"""

import math
import time
from typing import Any, NamedTuple, cast

from fractune_core.access import without_password
from fractune_core.errors import BadRequest, FractuneError, RedisGone
from fractune_core.fleet.redis_names import CLOCK_TOLERANCE_S, MARK_TTL_S, PREFIX, PROTOCOL_KEY, WORKER_TTL_S, WORKERS

CLOCK_LIMIT_S = CLOCK_TOLERANCE_S / 2
"""from Redis's clock; two that are within it are within the tolerance of each other"""


class ClockWrong(FractuneError):
    """The clock of this host, or that of Redis's, is wrong."""


def redis_time_s(answer: tuple[int, int]) -> float:
    """Seconds since 1970 by Redis's clock, from its answer to TIME."""
    secs, micros = answer
    return secs + micros / 1e6


def check_clock(who: str, redis_now_s: float) -> None:
    """Raises ClockWrong when the clock of this process differs from Redis's by more than CLOCK_LIMIT_S."""
    ahead_s = time.time() - redis_now_s
    if abs(ahead_s) > CLOCK_LIMIT_S:
        raise ClockWrong(
            f"the clock of {who} is {abs(ahead_s) / 3600:.2f} h {'ahead of' if ahead_s > 0 else 'behind'} that of "
            f"Redis, and {CLOCK_LIMIT_S / 3600:g} h are allowed; set the clocks of both hosts, then start it again"
        )


def no_redis(url: str, error: Exception) -> FractuneError:
    """The error for a Redis that does not answer at `url`, or not to this user, or for a wrong address."""
    shown = without_password(url)
    if isinstance(error, ValueError):  # whose text may quote a part of the password
        return BadRequest(
            f"--redis {shown}: not an address of a Redis; write redis://USER@HOST:PORT/DB or unix:///PATH"
        )
    return RedisGone(
        f"no Redis at {shown} ({error}); start it, name another by --redis, or check its user and the password file"
    )


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


def worker_key(name: str) -> str:
    return f"{PREFIX}worker:{name}"


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


DONE = PREFIX + "done"
"""of the id of work: it has been delivered or taken back, and is not done again"""
CANCELLED = PREFIX + "cancelled"
"""of a round, or of a job for work without a round: workers can drop that work"""
HANDED_BACK = PREFIX + "handed-back"
"""of the id of work: its worker has ended for reasons of its own, no death to hold against the work"""


def mark(redis: Any, kind: str, name: str) -> None:
    """In a `redis.Redis`, or as a part of a pipeline."""
    redis.zadd(kind, {name: time.time() + MARK_TTL_S})


def is_marked(redis: Any, kind: str, name: str) -> bool:
    return redis.zscore(kind, name) is not None


def unmark(redis: Any, kind: str, name: str) -> bool:
    """Whether there was such a mark."""
    return bool(redis.zrem(kind, name))


def drop_old_marks(redis: Any) -> float:
    """Of all kinds, those that are about messages that no worker would open any more.

    By Redis's clock, which it returns, in seconds since 1970: a server whose own has jumped ahead must not forget what
    has been done.
    """
    now_s = redis_time_s(redis.time())
    with redis.pipeline(transaction=False) as pipe:
        for kind in (DONE, CANCELLED, HANDED_BACK):
            pipe.zremrangebyscore(kind, "-inf", now_s)
        pipe.execute()
    return now_s
