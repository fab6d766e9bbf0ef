"""Results that the recorder could not read, kept whole in a Redis stream for another version or for inspection.

Only `replay` removes them. If there are too many, the oldest are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from fractune_core.fleet.redis_names import EVENT_FIELD, REPLAYED_FIELD, SERVER_STREAM, UNREADABLE
from fractune_core.fleet.signed_messages import seal_replayed

_MOST = 10_000
_PLACE, _REASON = "place", "reason"


@dataclass(frozen=True)
class SetAsideResult:
    """A result, its origin, and why it could not be read."""

    entry: str
    """id in the stream of unreadable results; begins with milliseconds since 1970"""
    place: str
    """stream where the result arrived, and its id there"""
    reason: str
    event: str
    """as a worker wrote it"""

    @property
    def set_aside_at(self) -> float:
        """Seconds since 1970."""
        return int(self.entry.partition("-")[0]) / 1000


def set_aside(redis: Redis, place: str, event: bytes, reason: str) -> None:
    """Keep a result that cannot be read."""
    redis.xadd(UNREADABLE, cast(Any, {_PLACE: place, _REASON: reason, EVENT_FIELD: event}), maxlen=_MOST)


def unreadable_results(redis: Redis, limit: int) -> tuple[list[SetAsideResult], int]:
    """The newest results, at most `limit`, and the number of all."""
    found: Any = redis.xrevrange(UNREADABLE, count=limit)
    return [_result(entry, fields) for entry, fields in found], int(cast(Any, redis.xlen(UNREADABLE)))


def replay(redis: Redis, secret: bytes) -> int:
    """Send all results to the recorder again, oldest first, and return their number.

    Results that it still cannot read are set aside again. The server signs the replay: the results count although
    their rounds have ended.
    """
    found: Any = redis.xrange(UNREADABLE)  # a snapshot: results that arrive meanwhile are not replayed
    for entry, fields in found:
        with redis.pipeline() as pipe:  # both or none
            event = fields[EVENT_FIELD.encode()].decode(errors="surrogateescape")
            pipe.xadd(SERVER_STREAM, {REPLAYED_FIELD: seal_replayed(secret, event)})
            pipe.xdel(UNREADABLE, entry)
            pipe.execute()
    return len(found)


def _result(entry: bytes, fields: Any) -> SetAsideResult:
    place, reason, event = (fields[name.encode()].decode(errors="replace") for name in (_PLACE, _REASON, EVENT_FIELD))
    return SetAsideResult(entry.decode(), place, reason, event)
