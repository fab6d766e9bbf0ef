"""MIG's placement table: the instances that fit beside each other on one GPU, and their places.

The rules of GPUs with 7 slices of SMs and 8 of memory: A100, H100, H200, B200. An instance of 3g takes half of the
memory. At place 4 it leaves 4 slices of SMs to others, at place 0 only 3. NVML refuses a 3g after smaller instances
("Insufficient Resources"), so 3g instances are made first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

COMPUTE_SLICES = 7
MEMORY_SLICES = 8


@dataclass(frozen=True)
class Profile:
    """A kind of GPU instance."""

    name: str
    id: int
    """number in NVML and nvidia-smi"""
    compute: int
    """slices of SMs, of 7"""
    memory: int
    """slices of memory, of 8"""
    places: tuple[int, ...]
    """possible first memory slices, the least wasteful first"""
    at_most: int


PROFILES = (
    Profile("7g", 0, 7, 8, (0,), 1),
    Profile("3g", 9, 3, 4, (4, 0), 2),
    Profile("4g", 5, 4, 4, (0,), 1),
    Profile("2g", 14, 2, 2, (0, 2, 4), 3),
    Profile("1g with double memory", 15, 1, 2, (0, 2, 4, 6), 4),
    Profile("1g+me", 20, 1, 1, tuple(range(7)), 1),
    Profile("1g", 19, 1, 1, tuple(range(7)), 7),
)
"""in the order of creation"""
BY_NAME = {profile.name: profile for profile in PROFILES}
PLAIN = tuple(BY_NAME[name] for name in ("1g", "2g", "3g", "4g", "7g"))
"""profiles that plans use: one for each number of slices, without extra memory or a media engine"""

Placed = tuple[Profile, int]
"""an instance, and its first memory slice"""


def placements(profiles: Sequence[Profile]) -> Iterator[list[Placed]]:
    """Every way to place `profiles` in this order, the least wasteful first."""
    if sum(profile.compute for profile in profiles) > COMPUTE_SLICES:
        return
    if any(profiles.count(profile) > profile.at_most for profile in profiles):
        return
    yield from _place(list(profiles), frozenset())


def least_wasteful(units: Sequence[int]) -> dict[int, list[int]]:
    """First memory slices of plain instances with these numbers of slices, by slices: the layout that leaves most to
    others.

    The instances must fit onto a GPU.
    """
    profiles = sorted((BY_NAME[f"{each}g"] for each in units), key=PROFILES.index)
    places: dict[int, list[int]] = {}
    for profile, place in next(placements(profiles)):
        places.setdefault(profile.compute, []).append(place)
    return places


def slices(placed: Placed) -> frozenset[int]:
    """The memory slices of an instance."""
    profile, place = placed
    return frozenset(range(place, place + profile.memory))


def _place(profiles: list[Profile], taken: frozenset[int]) -> Iterator[list[Placed]]:
    if not profiles:
        yield []
        return
    first, *rest = profiles
    for place in first.places:
        own = slices((first, place))
        if not own & taken:
            for others in _place(rest, taken | own):
                yield [(first, place), *others]
