"""Tiles of a factor that a GPU's copy engine (TMA) takes as a box of an argument, from compute capability 9.0 on.

One thread requests a whole tile. A tensor map, which the host encodes, says how the argument lies. So a factor fits
whose tiles are plain boxes: not the gathered rows of a padded image, yet the weights beside them. What lies beyond the
argument is 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fractune_workers.children.triton_kernels.decisions import Decisions, element_bytes_of
from fractune_workers.children.triton_kernels.finishes import part_text
from fractune_workers.children.triton_kernels.sums import Factor, Sums, merged_axes

FACTOR_AXES = (("row", "depth"), ("depth", "column"))
"""of a tile of each factor, as the kernel multiplies it"""
_MOST_DIMENSIONS = 5
_ALIGNED_BYTES = 16
"""of every stride but the innermost"""


@dataclass(frozen=True)
class Box:
    """A tile in an argument; the outermost dimension first."""

    argument: int
    dtype: str
    extents: tuple[int, ...]
    """of the argument"""
    strides: tuple[int, ...]
    """in elements; the innermost is 1"""
    lengths: tuple[int, ...]
    """of the tile"""
    load: str
    """the tile as Triton's expression over `factor`, `batch` and the first elements of both axes of the tile"""


class _Dimension(NamedTuple):
    name: str
    """its coordinate"""
    extent: int
    stride: int
    length: int


def has_boxes(sums: Sums) -> bool:
    """Whether a tile of at least one factor is a box."""
    return any(_dimensions(sums, *each, dict.fromkeys(_all_axes(), 1)) for each in _factors(sums))


def boxes_of(sums: Sums, decisions: Decisions) -> tuple[Box | None, Box | None]:
    """The boxes of both factors; None for one that is loaded by pointers."""
    lengths = {"row": decisions.rows, "column": decisions.columns, "depth": decisions.depth}
    first, second = (_box(sums, *each, lengths) if decisions.tma else None for each in _factors(sums))
    return first, second


def _all_axes() -> set[str]:
    return {axis for axes in FACTOR_AXES for axis in axes}


def _factors(sums: Sums) -> list[tuple[Factor, tuple[str, str]]]:
    return list(zip(sums.factors, FACTOR_AXES, strict=True))


def _box(sums: Sums, factor: Factor, axes: tuple[str, str], lengths: Mapping[str, int]) -> Box | None:
    found = _dimensions(sums, factor, axes, lengths)
    if not found:
        return None
    load = f"factor.load([{', '.join(each.name for each in found)}])"
    outer, inner = found[-2:]
    if len(found) > len(axes):
        load += f".reshape({outer.length}, {inner.length})"
    if inner.name != axes[-1]:
        load += ".T"
    _, extents, strides, taken = zip(*found, strict=True)
    return Box(factor.argument, sums.dtype, extents, strides, taken, load)


def _dimensions(
    sums: Sums, factor: Factor, axes: tuple[str, str], lengths: Mapping[str, int]
) -> tuple[_Dimension, ...]:
    """The dimensions of the argument, those of batches outermost; empty where a tile is not a box."""
    strides, offset = factor.place
    if factor.conditions or offset:
        return ()
    whole = sums.extent("batch")
    dimensions = [
        _Dimension(part_text("batch", inner, extent, whole), extent, stride, 1)
        for inner, extent, stride in reversed(merged_axes(sums.groups["batch"], strides))
    ]
    tile: list[_Dimension] = []
    for axis in axes:
        # An axis of one element has no stride.
        (_, extent, stride), *others = merged_axes(sums.groups[axis], strides) or [(1, 1, 0)]
        if others:
            return ()
        tile.append(_Dimension(axis, extent, stride, lengths[axis]))
    tile.sort(key=lambda each: each.stride == 1)
    outer, inner = tile
    aligned = _ALIGNED_BYTES // element_bytes_of(sums.dtype)
    if not outer.stride:
        outer = outer._replace(stride=-(-inner.extent // aligned) * aligned)
    dimensions += [outer, inner]
    apart = all(
        each.stride >= within.extent * within.stride and each.stride % aligned == 0
        for each, within in pairwise(dimensions)
    )
    return tuple(dimensions) if inner.stride == 1 and apart and len(dimensions) <= _MOST_DIMENSIONS else ()
