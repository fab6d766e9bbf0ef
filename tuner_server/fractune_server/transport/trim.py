"""Keeps results streams short: what every group has acknowledged is dropped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from redis import Redis

from fractune_core.fleet.redis_names import RECORDER, SERVER_STREAM, tuner_stream
from fractune_server.transport.recorder import Recorder


def trim(redis: Redis, recorder: Recorder, alive: Collection[str], needed: Collection[str]) -> None:
    """Trim all streams, and remove those of tuner instances that are neither `alive` nor `needed`.

    It takes three round trips, and some for each stream that may go.
    """
    keep = {tuner_stream(instance) for instance in (*alive, *needed)} | {SERVER_STREAM}
    reading = {tuner_stream(instance) for instance in alive}
    groups = _groups(redis, sorted(recorder.streams))
    for stream in groups.keys() - keep:
        if _drained(redis, stream, groups[stream]):
            recorder.leave(stream)
            del groups[stream]
    # A tuner instance that has died will never acknowledge: only the recorder counts then.
    counting = [
        (stream, group)
        for stream, found in groups.items()
        for group in found
        if _text(group["name"]) == RECORDER or stream in reading
    ]
    done: dict[str, bytes | str] = {}
    for (stream, _), entry in zip(counting, _first_unacknowledged(redis, counting), strict=True):
        done[stream] = min(done.get(stream, entry), entry, key=_order)
    with redis.pipeline(transaction=False) as pipe:
        for stream, entry in done.items():
            pipe.xtrim(stream, minid=_text(entry), approximate=False)
        pipe.execute()


def _groups(redis: Redis, streams: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """What Redis knows of the streams' groups, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for stream in streams:
            pipe.xinfo_groups(stream)
        return dict(zip(streams, pipe.execute(), strict=True))


def _first_unacknowledged(redis: Redis, counting: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes | str]:
    """For each group the oldest entry that it still needs, or the last one that it has read; in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for stream, group in counting:
            if group["pending"]:
                pipe.xpending(stream, group["name"])
        oldest = iter(pipe.execute())
    # What was pending may have been acknowledged since: then there is no oldest.
    pending = [next(oldest)["min"] if group["pending"] else None for _, group in counting]
    return [first or group["last-delivered-id"] for first, (_, group) in zip(pending, counting, strict=True)]


def _drained(redis: Redis, stream: str, groups: list[dict[str, Any]]) -> bool:
    recorder = next(group for group in groups if _text(group["name"]) == RECORDER)
    last = redis.xinfo_stream(stream)["last-generated-id"]
    return not recorder["pending"] and _text(recorder["last-delivered-id"]) == _text(last)


def _order(entry: bytes | str) -> tuple[int, int]:
    millis, _, counter = _text(entry).partition("-")
    return int(millis), int(counter)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
