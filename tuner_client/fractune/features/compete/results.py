"""What a bundle holds of its comparisons with other runtimes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fractune.features.compete.measured import runtime_times
from fractune.features.compete.table import compared_table
from fractune.features.shapes.text import shape_text
from fractune.text.rendering import Table
from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_core.files.buckets import Buckets, input_shapes, sizes_text
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import Between, Compared, between_of


@dataclass(frozen=True)
class Contest:
    """One shape at one share."""

    shape: str
    """of a bundle for several shapes, or sizes between two of them, at which it pads; empty for any other"""
    share: str
    compared: Compared


@dataclass(frozen=True)
class CompeteResult:
    """The contests of a bundle, which it holds now."""

    path: Path
    contests: tuple[Contest, ...]
    shares: tuple[str, ...] = ()
    """those that were timed by this call; the bundle may hold more"""

    @property
    def table(self) -> Table:
        """A row for each contender at each share."""
        return compared_table(self.path.name, self.contests)

    def measured(self) -> list[RuntimeTime]:
        """What `Client.add_runtime_times` puts into the log. Each call makes other ones. Raises BadBundle."""
        return runtime_times(self.path, self.shares)


def held_contests(path: Path) -> CompeteResult:
    """The contests that the bundle at `path` holds. Raises BadBundle."""
    return CompeteResult(path, tuple(_contests(path)))


def _contests(path: Path) -> Iterator[Contest]:
    with contextlib.closing(Bundle(path)) as bundle:
        several = "buckets" in bundle.manifest
        for number, each in enumerate(bundle.members if several else [bundle]):
            shape = shape_text(input_shapes(each.manifest)) if several else ""
            between = between_of(each.manifest)
            for share, compared in each.manifest.get("compared", {}).items():
                yield from _between(bundle, number, share, between.get(share, ()))
                yield Contest(shape, share, Compared.from_json(compared))


def _between(bundle: Bundle, member: int, share: str, found: Sequence[Between]) -> Iterator[Contest]:
    """Of the sizes along each axis the largest at which a runtime was faster; else the smallest."""
    if not found:
        return
    axes = Buckets.from_json(bundle.manifest["buckets"]).axes
    whole = axes.sizes(input_shapes(bundle.members[member].manifest))
    for symbol in whole:
        along = [each for each in found if each.sizes[symbol] != whole[symbol]]
        won = [each for each in along if each.compared.winners]
        if along:
            shown = max(won, key=lambda each: each.sizes[symbol]) if won else along[0]
            yield Contest(f"up to {sizes_text(shown.sizes)}", share, shown.compared)
