"""Runtimes that serve sizes between a bundle's shapes: faster than a padded run, or because nothing may be padded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fractune.inference.choosing.runtimes import Winner, compared_share
from fractune.inference.cpu import ShareHere
from fractune_core.files.buckets import Buckets, input_shapes
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import MODEL, Compared, between_of
from fractune_core.served import ServiceGoal


@dataclass(frozen=True)
class ServesUpTo:
    """A runtime serves these sizes and smaller ones, by symbol."""

    sizes: Mapping[str, int]
    runtime: str
    threads: int


def server_of(points: Sequence[ServesUpTo], sizes: Mapping[str, int]) -> ServesUpTo | None:
    """What serves `sizes`: the nearest of the `points` above; None if the bundle does."""
    above = (each for each in points if all(each.sizes[symbol] >= size for symbol, size in sizes.items()))
    return min(above, key=lambda each: math.prod(each.sizes.values()), default=None)


def servers_between(
    bundle: Bundle, here: ShareHere, threads: int, goal: ServiceGoal
) -> tuple[list[list[ServesUpTo]], str]:
    """By member: the runtimes that serve sizes below its own. And a warning if one of them is not here in the version
    that was timed.
    """
    found: list[list[ServesUpTo]] = [[] for _ in bundle.members]
    at = compared_share(bundle, here, threads)
    if at is None:
        return found, ""
    missing: dict[str, str] = {}
    for points, member in zip(found, bundle.members, strict=True):
        for sizes, winner, why in _winners(bundle, member, at[0], goal):
            if winner.is_here:
                points.append(ServesUpTo(sizes, winner.runtime, at[1]))
            else:
                text = f"{winner.runtime} {winner.version} {why}, and {winner.missing}; {winner.advice}"
                missing.setdefault(winner.runtime, f"{bundle.name}: {text}")
    return found, "; ".join(missing.values())


def _winners(
    bundle: Bundle, member: Bundle, share: str, goal: ServiceGoal
) -> Iterator[tuple[dict[str, int], Winner, str]]:
    """Sizes, the runtime that serves them and smaller ones, and why."""
    held = Buckets.from_json(bundle.manifest["buckets"])
    if held.padding.proved:
        for each in between_of(member.manifest).get(share, []):
            winner = Winner.of(bundle, each.compared, goal)
            if winner is not None:
                yield each.sizes, winner, f"was {winner.factor} between shapes"
    elif MODEL in bundle.manifest["sha256"] and share in member.manifest.get("compared", {}):
        runtime = Compared.from_json(member.manifest["compared"][share]).fastest_other(goal)
        if runtime in bundle.manifest.get("runtimes", {}):
            sizes = held.axes.sizes(input_shapes(member.manifest))
            yield sizes, Winner.named(bundle, runtime, ""), "runs what lies between shapes and may not be padded"
