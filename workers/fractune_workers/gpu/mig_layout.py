"""Dividing a GPU by MIG: which instances fit beside each other, where they go, and the commands that make them.

The rules of the GPUs that have 7 slices of SMs and 8 of memory: A100, H100, H200, B200. An instance of 3g takes half of
the memory: at place 4 it leaves 4 slices of SMs to the others, at place 0 only 3. NVML refuses a 3g after smaller
ones ("Insufficient Resources"), so they are made first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_workers.gpu.nvml import Gpu

COMPUTE_SLICES = 7
MEMORY_SLICES = 8
_GB_TOLERANCE = 0.15
"""NVIDIA rounds an instance's memory in its name: 18gb is an eighth of 141"""
_PART = re.compile(r"([1-7]g)(?:\.([1-9][0-9]{0,2})gb)?(\+me)?")
_HINT = "write 3g+4g, 1g+1g+2g+3g or, with NVIDIA's names, 3g.71gb+4g.71gb"

Command = tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """A kind of GPU instance."""

    name: str
    id: int
    """NVML's and nvidia-smi's number for it"""
    compute: int
    """slices of SMs, of 7"""
    memory: int
    """slices of memory, of 8"""
    places: tuple[int, ...]
    """the memory slices where it may begin, the one that wastes least first"""
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
"""In the order in which instances are made."""
_BY_NAME = {profile.name: profile for profile in PROFILES}
_DOUBLE = _BY_NAME["1g with double memory"]

Placed = tuple[Profile, int]
"""An instance, and the memory slice where it begins"""


def plan_layout(text: str, gpu: Gpu) -> list[Placed]:
    """The instances that `text` names (`3g+4g`), placed, in the order in which they are to be made.

    Raises BadRequest for text that names none, or for what does not fit; ShareUnavailable for a GPU with other rules.
    """
    if gpu.mig_instances_at_most not in {0, COMPUTE_SLICES}:
        raise ShareUnavailable(
            f"{gpu.name} divides into {gpu.mig_instances_at_most} instances; only the rules of GPUs with "
            f"{COMPUTE_SLICES} are known here: use `nvidia-smi mig -lgip` and `nvidia-smi mig -cgi`"
        )
    wanted = sorted((_profile(part, gpu) for part in _parts(text)), key=PROFILES.index)
    placed = next(placements(wanted), None)
    if placed is None:
        raise BadRequest(
            f"layout '{text}' does not fit: a GPU has {COMPUTE_SLICES} slices of SMs and {MEMORY_SLICES} of memory, of "
            "which 3g and 4g take half each, and 4g is there once; leave something out"
        )
    return placed


def placements(profiles: Sequence[Profile]) -> Iterator[list[Placed]]:
    """Every way to place `profiles` in this order, the least wasteful first."""
    if sum(profile.compute for profile in profiles) > COMPUTE_SLICES:
        return
    if any(profiles.count(profile) > profile.at_most for profile in profiles):
        return
    yield from _place(list(profiles), frozenset())


def commands(placed: Sequence[Placed], gpu: Gpu) -> list[Command]:
    """What to run as root, in this order: MIG mode on if it is off, present instances away, the new ones made."""
    mig = ("nvidia-smi", "mig", "-i", gpu.uuid)
    tuples = ",".join(f"{profile.id}:{place}" for profile, place in placed)
    made: list[Command] = []
    if not gpu.mig:
        made.append(("nvidia-smi", "-i", gpu.uuid, "-mig", "1"))
    if gpu.instances:
        made += [(*mig, "-dci"), (*mig, "-dgi")]
    return [*made, (*mig, "-cgi", tuples, "-C")]


def _parts(text: str) -> list[str]:
    """`1g+me+2g` has two parts: a plus sign before `me` is part of a name."""
    return [part.strip() for part in re.split(r"\+(?!\s*me\b)", text)]


def _profile(part: str, gpu: Gpu) -> Profile:
    match = _PART.fullmatch(part)
    profile = _BY_NAME.get(f"{match[1]}{match[3] or ''}") if match else None
    if match is None or profile is None:
        raise BadRequest(f"layout: '{part}' is no instance; {_HINT}")
    if match[2] is None:
        return profile
    for candidate in (profile, _DOUBLE) if profile.name == "1g" else (profile,):
        gb = _gb(candidate, gpu)
        if abs(int(match[2]) - gb) <= _GB_TOLERANCE * gb:
            return candidate
    raise BadRequest(
        f"layout: '{part}' is no instance of {gpu.name}, whose {profile.name} has {_gb(profile, gpu):.0f} GiB"
    )


def _gb(profile: Profile, gpu: Gpu) -> float:
    return gpu.memory_bytes / 2**30 * profile.memory / MEMORY_SLICES


def _place(profiles: list[Profile], taken: frozenset[int]) -> Iterator[list[Placed]]:
    if not profiles:
        yield []
        return
    first, *rest = profiles
    for place in first.places:
        slices = frozenset(range(place, place + first.memory))
        if not slices & taken:
            for others in _place(rest, taken | slices):
                yield [(first, place), *others]
