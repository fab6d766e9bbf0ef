"""How two models share a processor: which part each has, and the whole that either would have without the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share

_HALVES = "mps:50,mps:50"


@dataclass(frozen=True)
class Place:
    """Where a process runs."""

    share: Share
    cores: tuple[int, ...] = ()
    """of a CPU share"""


@dataclass(frozen=True)
class Arrangement:
    """The places of two that share a processor."""

    how: str
    """`own units`, `same units` or `in turn`"""
    places: tuple[Place, Place]
    whole: Place | None
    """all that both have together; None where it cannot be had while the places are there"""

    @property
    def in_turn(self) -> bool:
        """Whether one waits while the other computes."""
        return self.how == "in turn"

    @property
    def is_verified(self) -> bool:
        """Whether this was ever tried on such a device."""
        return self.places[0].share.device_kind == CPU

    def __str__(self) -> str:
        if self.how != "own units":
            return f"both at {self.places[0].share}, {'in turn' if self.in_turn else 'at the same time'}"
        beside = " + ".join(str(place.share) for place in self.places)
        whole = f", of {self.whole.share}" if self.whole else ""
        return f"{beside}, each on its own{whole}"


def arrange(
    device_kind: str, *, shares: str | None, overlap: str | None, in_turn: bool, cores: Sequence[int]
) -> Arrangement:
    """The arrangement that is asked for, by default halves of what there is; `cores` of the host may be used.

    `device_kind`: `cpu` or `cuda`, what the models are for. Raises BadRequest, and ShareUnavailable for shares that
    together are larger than the machine.
    """
    if shares is not None and (overlap is not None or in_turn):
        raise BadRequest("shares names a share of its own for each, overlap and in-turn one for both; give one of them")
    if shares is None and overlap is None and not in_turn and (device_kind != "cpu" or len(cores) > 1):
        shares = f"cpu:{len(cores) // 2},cpu:{len(cores) // 2}" if device_kind == "cpu" else _HALVES
    if shares is None:
        whole = f"cpu:{len(cores)}" if device_kind == "cpu" else "full"
        share = _served(overlap or whole, device_kind)
        place = Place(share, _taken([share], cores, str(share)))
        return Arrangement("in turn" if in_turn else "same units", (place, place), place)
    one, other = _two(shares, device_kind)
    taken = _taken([one, other], cores, shares)
    whole = one.kind.whole
    if whole and int(one.size) + int(other.size) > int(whole):
        raise ShareUnavailable(f"shares {shares} are more than the whole GPU; ask for less, or for the same by overlap")
    first = Place(one, taken[: one.host_cores])
    second = Place(other, taken[len(first.cores) :])
    return Arrangement("own units", (first, second), _whole_of(first, second))


def usable_cores() -> list[int]:
    """The cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))


def _two(text: str, device_kind: str) -> tuple[Share, Share]:
    named = [_served(part, device_kind) for part in text.split(",")]
    if len(named) != 2:
        raise BadRequest(f"shares '{text}': name two, one for each, such as cpu:1,cpu:1")
    if named[0].mechanism != named[1].mechanism or not named[0].size:
        raise BadRequest(f"shares '{text}': two parts of one device by one mechanism, such as mps:50,mps:50")
    return named[0], named[1]


def _served(text: str, device_kind: str) -> Share:
    share = Share.parse(text)
    share.check_serves(device_kind)
    return share


def _taken(shares: Sequence[Share], cores: Sequence[int], requested: str) -> tuple[int, ...]:
    """The cores of CPU shares, the first of those left; none for shares of a GPU."""
    if shares[0].device_kind != CPU:
        return ()
    count = sum(share.cores for share in shares)
    if count > len(cores):
        raise ShareUnavailable(
            f"{requested} takes {count} cores, and {len(cores)} may be used here; ask for less, or for the same "
            "cores by overlap"
        )
    return tuple(cores[:count])


def _whole_of(first: Place, second: Place) -> Place | None:
    """All units of both. A GPU in instances or static partitions has no whole while they exist."""
    cores, kind = first.cores + second.cores, first.share.kind
    if cores:
        return Place(Share("cpu", str(len(cores))), cores)
    return Place(Share(kind.mechanism, kind.whole)) if kind.whole else None
