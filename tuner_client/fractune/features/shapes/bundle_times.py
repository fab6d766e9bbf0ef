"""What a bundle for several shapes takes by shape and share, and what padding costs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.shapes.text import shape_text
from fractune.text.rendering import Column, Table
from fractune.text.text import factor_text, time_text
from fractune_core.analysis.bucket_choice import most_padding
from fractune_core.files.buckets import Buckets, Padding, input_shapes
from fractune_core.files.bundles import Bundle


@dataclass(frozen=True)
class ShapeTime:
    """One shape at one share."""

    inputs: dict[str, list[int]]
    share: str
    timed_s: float | None
    """of the whole model; None if it was not timed"""
    most_padding: float | None
    """times as long as in the next smaller bucket, which is the most that padding costs; None for the smallest"""


@dataclass(frozen=True)
class BundleTimes:
    name: str
    times: tuple[ShapeTime, ...]
    padding: Padding

    @property
    def table(self) -> Table:
        """A row for each shape and share, the smallest shape first."""
        columns = (
            Column("shape", wraps_at=24),
            Column("share"),
            Column("time", numbers=True),
            Column("padding costs up to", numbers=True),
        )
        return Table(title=f"{self.name} by shape", columns=columns, cells=tuple(map(_cells, self.times)))

    def to_json(self) -> list[dict[str, Any]]:
        return [vars(each) for each in self.times]


def bundle_times(path: Path) -> BundleTimes | None:
    """None for a bundle with one shape. Raises BadBundle."""
    with contextlib.closing(Bundle(path)) as bundle:
        if "buckets" not in bundle.manifest:
            return None
        held = Buckets.from_json(bundle.manifest["buckets"])
        members = [member.manifest for member in bundle.members]
    sizes = [held.axes.sizes(input_shapes(member)) for member in members]
    found = []
    for share in members[-1]["shares"]:
        secs = [member.get("timed", {}).get(share) for member in members]
        for member, timed_s, factor in zip(members, secs, most_padding(sizes, secs), strict=True):
            found.append(ShapeTime(input_shapes(member), share, timed_s, factor))
    return BundleTimes(path.name, tuple(found), held.padding)


def _cells(each: ShapeTime) -> tuple[str, ...]:
    factor = "-" if each.most_padding is None else factor_text(each.most_padding)
    return shape_text(each.inputs), each.share, time_text(each.timed_s), factor
