"""The live workers, from the entries that they renew in Redis."""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from redis import Redis
from rq.job import Job

from fractune_core.codec.messages import END_OF_TIME_S, fits
from fractune_core.errors import FractuneError, ShareUnavailable
from fractune_core.fleet.messages import WorkerInfo
from fractune_core.fleet.redis_names import UNREADABLE, is_of_protocol, role_and_share
from fractune_core.fleet.redis_state import read_entries
from fractune_core.fleet.signed_messages import open_worker
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import Device, GrantedShare, Share
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


MEASURE = "measure"
TUNE = "tune"
BUILD = "build"
COMPILE = "compile"

_OPENED = 4096
"""entries whose opened form is kept"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldShare:
    """A share of a device, as a live worker holds it or a record of the log has it."""

    device: Device
    granted: GrantedShare
    target: str
    """TVM's default target of the device as JSON"""


class Fleet:
    """The live workers at one moment."""

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self.workers = {worker.name: worker for worker in workers}

    def of_role(self, role: str) -> list[WorkerInfo]:
        """By name, so that every caller sees the same order."""
        return sorted((w for w in self.workers.values() if w.role == role), key=lambda w: w.name)

    @cached_property
    def offers(self) -> list[HeldShare]:
        """The shares of the measuring workers, one entry a worker."""
        return [
            HeldShare(w.device, w.granted, w.target)
            for w in self.of_role(MEASURE)
            if w.device is not None and w.granted is not None
        ]

    def offer(self, shares: Sequence[str]) -> dict[str, HeldShare]:
        """By share, in the requested order, all on one device. Raises ShareUnavailable."""
        by_device: dict[str, dict[str, HeldShare]] = {}
        for offer in self.offers:
            by_device.setdefault(offer.device.key, {}).setdefault(offer.granted.share, offer)
        for held in by_device.values():
            if all(share in held for share in shares):
                return {share: held[share] for share in shares}
        raise ShareUnavailable(_refusal(shares, by_device))


def _refusal(shares: Sequence[str], by_device: dict[str, dict[str, HeldShare]]) -> str:
    if not by_device:
        return f"no worker offers {', '.join(shares)}: no measuring worker is running; start one for each share"
    offered = "; ".join(f"{', '.join(sorted(held))} on {device}" for device, held in sorted(by_device.items()))
    missing = [share for share in shares if not any(share in held for held in by_device.values())]
    if missing:
        return f"no worker offers {', '.join(missing)}; offered: {offered}. Start a worker for it"
    return f"no single device offers all of {', '.join(shares)}; offered: {offered}"


def live_workers(redis: Redis, secret: bytes) -> Fleet:
    """The workers in Redis, without those of another protocol or another secret."""
    return open_entries(secret, read_entries(redis))


def open_entries(secret: bytes, entries: Mapping[str, bytes]) -> Fleet:
    """The workers behind sealed entries, which are by name."""
    opened = (_open(secret, name, entry) for name, entry in entries.items())
    return Fleet(worker for worker in opened if worker is not None)


@lru_cache(maxsize=_OPENED)
def _open(secret: bytes, name: str, entry: bytes) -> WorkerInfo | None:
    """None for a worker that gets no work. Do not change the result: all callers share it."""
    try:
        worker = open_worker(secret, name, entry)
        _check_entry(name, worker)
    except (FractuneError, ValueError) as error:
        _warn_once(name, str(error))
        return None
    return worker


def _check_entry(name: str, worker: WorkerInfo) -> None:
    """Raises FractuneError or ValueError for an entry that callers cannot be sent."""
    if worker.name != name:
        raise ValueError(f"its entry has the name '{worker.name}'")
    if not 0 <= worker.started_at < END_OF_TIME_S or abs(worker.pid) >= 2**31:
        raise ValueError(f"its pid {worker.pid} or its start time {worker.started_at} is out of range")
    if not all(math.isfinite(count) for *_, count in worker.counts):
        raise ValueError("a count of it is not finite")
    if worker.role == MEASURE or worker.device:
        if worker.device is None or worker.granted is None:
            raise ValueError("it measures, and names no device or no share")
        Share.parse(worker.granted.share)
        if not fits(worker.device, pb.Device) or not fits(worker.granted, pb.GrantedShare):
            raise ValueError("a number of its device or its share has more than 32 bits")


@lru_cache(maxsize=1024)
def _warn_once(worker: str, reason: str) -> None:
    _log.warning("worker %s gets no work: %s", worker, reason)
