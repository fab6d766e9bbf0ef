"""The live workers, from the entries that they renew in Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypedDict

from redis import Redis

from fractune_core.convert import END_OF_TIME_S, are_small, can_be_told
from fractune_core.errors import FractuneError, ShareUnavailable
from fractune_core.fleet.messages import WorkerInfo
from fractune_core.fleet.redis_names import PROTOCOL
from fractune_core.fleet.signed_messages import open_worker
from fractune_core.fleet.worker_entries import read_entries
from fractune_core.json_shapes import check_shape
from fractune_core.shares import Device, GrantedShare, Share

MEASURE = "measure"
TUNE = "tune"
BUILD = "build"
COMPILE = "compile"

_OPENED = 4096
"""entries that are opened once for all who ask before they are renewed"""

_log = logging.getLogger(__name__)


class _AnyWorker(TypedDict):
    """Of whatever version: an object."""


@dataclass(frozen=True)
class HeldShare:
    """A share that a live worker holds."""

    device: Device
    granted: GrantedShare
    target: str
    """TVM's default target of the device as JSON"""


class Fleet:
    """The live workers at one moment."""

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self.workers = {worker["name"]: worker for worker in workers}

    def of_role(self, role: str) -> list[WorkerInfo]:
        """By name, so that every caller sees the same order."""
        return sorted((w for w in self.workers.values() if w["role"] == role), key=lambda w: w["name"])

    def offers(self) -> list[HeldShare]:
        """What the measuring workers hold, one entry a worker."""
        return self._offers

    @cached_property
    def _offers(self) -> list[HeldShare]:
        return [
            HeldShare(Device.from_json(w["device"]), GrantedShare.from_json(w["granted"]), w["target"])
            for w in self.of_role(MEASURE)
        ]

    def offer(self, shares: Sequence[str]) -> dict[str, HeldShare]:
        """By share, in the order asked for, all on one device. Raises ShareUnavailable."""
        offers = self.offers()
        by_device: dict[str, dict[str, HeldShare]] = {}
        for offer in offers:
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
    """Read the entries that workers keep renewing; without those of workers that would not understand the server, or
    have another secret.
    """
    return understood(secret, read_entries(redis))


def understood(secret: bytes, entries: Mapping[str, bytes]) -> Fleet:
    """Of the workers' entries, sealed, by name, those that `live_workers` tells."""
    return Fleet(_opened(secret, entries))


def _opened(secret: bytes, entries: Mapping[str, bytes]) -> Iterator[WorkerInfo]:
    for name, entry in entries.items():
        worker = _open(secret, name, entry)
        if worker is not None:
            yield worker


@lru_cache(maxsize=_OPENED)
def _open(secret: bytes, name: str, entry: bytes) -> WorkerInfo | None:
    """Not to be changed: whoever asks for the same entry gets the same. None for a worker that gets no work."""
    try:
        worker = open_worker(secret, name, entry)
        _check_entry(name, worker)
    except (FractuneError, ValueError) as error:
        _warn_once(name, str(error))
        return None
    return worker


def _check_entry(name: str, worker: WorkerInfo) -> None:
    """Raises FractuneError or ValueError for that of another protocol, and one that cannot be told to callers."""
    check_shape(_AnyWorker, worker)
    if worker.get("protocol") != PROTOCOL:
        raise ValueError(
            f"it speaks protocol {worker.get('protocol')!r}, this server {PROTOCOL}; "
            "install the same version of fractune for both"
        )
    check_shape(WorkerInfo, worker)
    if worker["name"] != name:
        raise ValueError(f"its entry is of '{worker['name']}'")
    if not 0 <= worker["started_at"] < END_OF_TIME_S or not are_small(worker["pid"]):
        raise ValueError(f"it is of process {worker['pid']}, and started at {worker['started_at']}")
    if worker["role"] == MEASURE or worker["device"]:
        check_shape(Device, worker["device"])
        check_shape(GrantedShare, worker["granted"])
        granted = GrantedShare.from_json(worker["granted"])
        Share.parse(granted.share)
        if not can_be_told(Device.from_json(worker["device"]), granted):
            raise ValueError("a number of its device or its share has more than 32 bits")


@lru_cache(maxsize=1024)
def _warn_once(worker: str, reason: str) -> None:
    _log.warning("worker %s gets no work: %s", worker, reason)
