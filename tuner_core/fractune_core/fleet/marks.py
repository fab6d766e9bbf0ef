"""Marks on work in Redis: a sorted set of names for each kind of mark, by the time when a mark may go.

One key for each kind, however much work there was. A mark outlives every message that it is about
(`fractune_core.fleet.redis_names.MARK_TTL_S`).
"""

import time
from typing import Any

from fractune_core.fleet.redis_connection import redis_time_s
from fractune_core.fleet.redis_names import MARK_TTL_S, PREFIX

DONE = PREFIX + "done"
"""of the id of work: it has been delivered or taken back, and is not done again"""
CANCELLED = PREFIX + "cancelled"
"""of a round, or of a job for work without a round: it is no longer needed"""
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
