"""Results that the recorder could not read, kept whole in a Redis stream for another version or for inspection.

Only `replay` removes them. If there are too many, or too many bytes of them, the oldest are dropped.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from fractune_core.fleet.redis_names import EVENT_FIELD, REPLAYED_FIELD, SERVER_STREAM, UNREADABLE
from fractune_core.fleet.signed_messages import seal_replayed

_MOST = 10_000
_MOST_BYTES = 64 << 20
_MOST_BYTES_OF_ONE = 16 << 20
_ENTRY_BYTES = 256
"""of an entry beside its fields, about"""
_PAGE = 16
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
    """as a worker wrote it; empty where it was too large to keep"""

    @property
    def set_aside_at(self) -> float:
        """Seconds since 1970."""
        return int(self.entry.partition("-")[0]) / 1000


class UnreadableStream:
    """Keeps results that cannot be read. Not thread-safe: the recorder alone writes.

    It knows the size of each entry. Entries that `replay` has removed count until they would be dropped.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._sizes: deque[tuple[str, int]] | None = None
        """id and bytes of each entry, oldest first; None until the first result is kept"""
        self._bytes = 0

    def keep(self, place: str, event: bytes, reason: str) -> None:
        if self._sizes is None:
            self._sizes = self._read_sizes()
            self._bytes = sum(size for _, size in self._sizes)
        if len(event) > _MOST_BYTES_OF_ONE:
            reason, event = f"{reason} ({len(event):,} bytes, which are too many to keep)", b""
        fields: Any = {_PLACE: place, _REASON: reason, EVENT_FIELD: event}
        entry: Any = self._redis.xadd(UNREADABLE, fields)
        size = _size(fields)
        self._sizes.append((entry.decode(), size))
        self._bytes += size
        self._drop_oldest(self._sizes)

    def _drop_oldest(self, sizes: deque[tuple[str, int]]) -> None:
        first = sizes[0]
        while self._bytes > _MOST_BYTES or len(sizes) > _MOST:
            self._bytes -= sizes.popleft()[1]
        if sizes[0] is not first:
            self._redis.xtrim(UNREADABLE, minid=sizes[0][0], approximate=False)

    def _read_sizes(self) -> deque[tuple[str, int]]:
        """Of what an earlier server has kept."""
        sizes, after = deque[tuple[str, int]](), "-"
        while found := cast("list[Any]", self._redis.xrange(UNREADABLE, min=after, count=_PAGE)):
            sizes.extend((entry.decode(), _size(fields)) for entry, fields in found)
            after = f"({sizes[-1][0]}"
        return sizes


def _size(fields: Mapping[Any, str | bytes]) -> int:
    return _ENTRY_BYTES + sum(map(len, fields.values()))


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
