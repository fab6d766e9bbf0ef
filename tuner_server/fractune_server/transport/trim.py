"""Keeps results streams short: what every group has acknowledged is dropped."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from redis import Redis

from fractune_core.messages import RECORDER, SERVER_STREAM, tuner_stream
from fractune_server.transport.recorder import Recorder


def trim(redis: Redis, recorder: Recorder, alive: Collection[str], needed: Collection[str]) -> None:
    """Trim all streams, and remove those of tuner instances that are neither `alive` nor `needed`."""
    keep = {tuner_stream(instance) for instance in (*alive, *needed)} | {SERVER_STREAM}
    reading = {tuner_stream(instance) for instance in alive}
    for stream in recorder.streams:
        groups = redis.xinfo_groups(stream)
        # A tuner instance that has died will never acknowledge: only the recorder counts then.
        counting = [g for g in groups if _text(g["name"]) == RECORDER or stream in reading]
        done = [_first_unacknowledged(redis, stream, group) for group in counting]
        if stream not in keep and _drained(redis, stream, groups):
            recorder.leave(stream)
        elif done:
            redis.xtrim(stream, minid=_text(min(done, key=_order)), approximate=False)


def _first_unacknowledged(redis: Redis, stream: str, group: dict[str, Any]) -> bytes | str:
    """The oldest entry that the group still needs, or the last one that it has read."""
    if group["pending"]:
        oldest: bytes | str = redis.xpending(stream, group["name"])["min"]
        return oldest
    last: bytes | str = group["last-delivered-id"]
    return last


def _drained(redis: Redis, stream: str, groups: list[dict[str, Any]]) -> bool:
    recorder = next(group for group in groups if _text(group["name"]) == RECORDER)
    last = redis.xinfo_stream(stream)["last-generated-id"]
    return not recorder["pending"] and _text(recorder["last-delivered-id"]) == _text(last)


def _order(entry: bytes | str) -> tuple[int, int]:
    millis, _, counter = _text(entry).partition("-")
    return int(millis), int(counter)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
