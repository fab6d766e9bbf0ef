"""How much work waits, and for how long."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis import Redis
from rq.job import Job

from fractune_core.fleet.redis_names import UNREADABLE, is_of_protocol, role_and_share
from fractune_server.transport.work_queues import all_queues

_QUEUED_AT = "enqueued_at"


@dataclass
class Waiting:
    """Work that waits for the workers of a role and, for measuring workers, of a share."""

    depth: int = 0
    oldest_at: float | None = None
    """when the oldest work was queued, in seconds since 1970, by the clock of the host that queued it"""


@dataclass(frozen=True)
class WaitingWork:
    by_role_and_share: dict[tuple[str, str], Waiting]
    unreadable: int
    """number of unreadable results"""


def waiting_work(redis: Redis) -> WaitingWork:
    """The work that waits now, in three round trips. Raises redis.RedisError."""
    queues = [each for each in all_queues(redis) if is_of_protocol(each.name)]
    with redis.pipeline(transaction=False) as pipe:
        pipe.xlen(UNREADABLE)
        for queue in queues:
            pipe.llen(queue.key)
            pipe.lindex(queue.key, 0)
        unreadable, *answers = pipe.execute()
    depths, heads = answers[::2], answers[1::2]
    found: defaultdict[tuple[str, str], Waiting] = defaultdict(Waiting)
    for queue, depth, queued_at in zip(queues, depths, _queued_at(redis, heads), strict=True):
        waiting = found[role_and_share(queue.name)]
        waiting.depth += depth
        if queued_at is not None:
            waiting.oldest_at = min(queued_at, waiting.oldest_at or queued_at)
    return WaitingWork(dict(found), unreadable)


def _queued_at(redis: Redis, heads: list[bytes | None]) -> list[float | None]:
    """When the first work of each queue was queued. Requeued work goes to the front, so the first is the oldest."""
    with redis.pipeline(transaction=False) as pipe:
        for head in heads:
            pipe.hget(Job.key_for(head.decode(errors="replace") if head else ""), _QUEUED_AT)
        return [_seconds(text) for text in pipe.execute()]


def _seconds(text: Any) -> float | None:
    """RQ's time as seconds since 1970; None for anything else, because writers to Redis may write anything."""
    try:
        return datetime.fromisoformat(text.decode()).timestamp()
    except (AttributeError, ValueError):
        return None
