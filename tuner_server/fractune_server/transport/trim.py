"""Keeps results streams short: entries that every group has acknowledged are dropped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from redis import Redis

from fractune_core.fleet.redis_names import RECORDER, SERVER_STREAM, tuner_stream
from fractune_server.transport.recorder import Recorder, text


def trim(redis: Redis, recorder: Recorder, alive: Collection[str], needed: Collection[str]) -> None:
    """Trim all streams, and remove those of tuner instances that are neither `alive` nor `needed`.

    It takes three round trips, and a few more for each stream that may be removed.
    """
    keep = {tuner_stream(instance) for instance in (*alive, *needed)} | {SERVER_STREAM}
    reading = {tuner_stream(instance) for instance in alive}
    groups = _groups(redis, sorted(recorder.streams))
    for stream in groups.keys() - keep:
        if _drained(redis, stream, groups[stream]):
            recorder.leave(stream)
            del groups[stream]
    # A dead tuner instance never acknowledges, so that only the recorder counts.
    counting = [
        (stream, group)
        for stream, found in groups.items()
        for group in found
        if text(group["name"]) == RECORDER or stream in reading
    ]
    done: dict[str, bytes | str] = {}
    for (stream, _), entry in zip(counting, _first_unacknowledged(redis, counting), strict=True):
        done[stream] = min(done.get(stream, entry), entry, key=_order)
    with redis.pipeline(transaction=False) as pipe:
        for stream, entry in done.items():
            pipe.xtrim(stream, minid=text(entry), approximate=False)
        pipe.execute()


def _groups(redis: Redis, streams: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The groups of the streams, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for stream in streams:
            pipe.xinfo_groups(stream)
        return dict(zip(streams, pipe.execute(), strict=True))


def _first_unacknowledged(redis: Redis, counting: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes | str]:
    """For each group the oldest entry that it needs, or the last one that it has read; in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for stream, group in counting:
            if group["pending"]:
                pipe.xpending(stream, group["name"])
        oldest = iter(pipe.execute())
    # Pending entries may have been acknowledged since; then there is no oldest one.
    pending = [next(oldest)["min"] if group["pending"] else None for _, group in counting]
    return [first or group["last-delivered-id"] for first, (_, group) in zip(pending, counting, strict=True)]


def _drained(redis: Redis, stream: str, groups: list[dict[str, Any]]) -> bool:
    recorder = next(group for group in groups if text(group["name"]) == RECORDER)
    last = redis.xinfo_stream(stream)["last-generated-id"]
    return not recorder["pending"] and text(recorder["last-delivered-id"]) == text(last)


def _order(entry: bytes | str) -> tuple[int, int]:
    millis, _, counter = text(entry).partition("-")
    return int(millis), int(counter)
