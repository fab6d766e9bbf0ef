"""Layouts of MIG by the definition of the placement table: what plans and placements are checked against."""

import functools
import itertools
from collections.abc import Iterable, Sequence

from benchmarks.support.published import overlaps
from fractune_core.planning.devices import COMPUTE_SLICES, PLAIN, Placed, Profile, placements


@functools.cache
def layouts(profiles: tuple[Profile, ...] = PLAIN) -> frozenset[frozenset[Placed]]:
    """Every set of one or more instances that a GPU can hold at the same time: 297 of the plain profiles."""
    counts = (itertools.combinations_with_replacement(profiles, count) for count in range(1, COMPUTE_SLICES + 1))
    return frozenset(frozenset(placed) for kinds in itertools.chain(*counts) for placed in placements(kinds))


def maximal(found: Iterable[frozenset[Placed]]) -> list[frozenset[Placed]]:
    """Those of the layouts to which no other instance can be added."""
    every = list(found)
    return [each for each in every if not any(each < other for other in every)]


def broken_rule(placed: Sequence[Placed]) -> str:
    """The first rule of the table that a layout breaks; empty for a valid one."""
    for profile, place in placed:
        if place not in profile.places:
            return "place"
    if overlaps(placed):
        return "overlap"
    profiles = [profile for profile, _ in placed]
    if any(profiles.count(profile) > profile.at_most for profile in profiles):
        return "at most"
    return "slices" if sum(profile.compute for profile in profiles) > COMPUTE_SLICES else ""
