"""The first candidates of an operator: computed from its loops and the target's vector unit, not drawn.

Kernels of blocked layouts get the likeliest register tiles, and reductions of rows likely numbers of vectors. Any other
operator gets the sketch that splits no reduction, with short unrolled loops and every block in a loop nest of its own.
A reduction that does not change the innermost axis gets a schedule with vectors along it: MetaSchedule's sketches keep
a reduction's loops innermost, and walk that axis number by number.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import tvm_ffi
from tvm.s_tir import Schedule

from fractune_core.tir.canonical import CONV, DEPTHWISE, MATMUL
from fractune_workers.children.searching.spaces import integers, rows, winograd
from fractune_workers.children.searching.spaces.register_tiles import Extents, Tiling, tilings
from fractune_workers.children.searching.spaces.sketches import (
    AT_ROOT,
    CATEGORICAL,
    MISFITS,
    TILE,
    Sketch,
    applied,
    block_named,
    finished,
    sketches_of,
)
from fractune_workers.children.tvm_api.target import VectorUnit

MOST = 16
"""of an operator: this number came within 15 % of the results of long searches, for nearly all convolutions of two
networks"""
_FLOAT_BYTES = 4
_SPATIAL = 0
"""TVM's number for an axis that is not reduced"""
_FUSING_DEEP = 1
"""the sketch that computes the epilogue where a tile is finished; the first sketch leaves it to a separate pass"""
_SHORT_UNROLL = 16
_LONG_ROW = 4
"""vectors, from which on the rest of a row hardly counts"""
_PARTS_OF_REDUCTION = 2


@dataclass(frozen=True)
class _Kernel:
    """The main computation of a blocked kernel."""

    kind: str
    """CONV, DEPTHWISE or MATMUL"""
    spatial: tuple[int, ...]
    """extents; the last is the vector"""
    reduction: tuple[int, ...]
    axes: tuple[int, int | None, int]
    """Axes of blocks, rows and columns; products have no rows. Axes before these (a batch, a fused model's slots) have
    loops around everything."""


def first_candidates(workload: Any, spaces: Iterable[Any], postprocs: Iterable[Any], unit: VectorUnit) -> Iterator[Any]:
    """Schedules of a CPU's operator, the likeliest first, none twice, at most MOST."""
    sketches, rules = sketches_of(spaces), list(postprocs)
    kernel = _kernel_of(workload.mod)
    by_hand = {winograd: winograd.is_winograd, integers: integers.is_integer}
    own = next((module for module, is_own in by_hand.items() if is_own(workload.mod)), None)
    decided: Iterator[Sketch]
    if own is not None:
        tiles = own.first_tiles(workload.mod, unit.registers)
        decided = (_decided(sketches[which], each, _SHORT_UNROLL) for which, each in tiles)
    elif (shape := rows.row_shape(workload.mod, unit.lanes)) is not None:
        decided = (_decided(sketches[0], each, _SHORT_UNROLL) for each in rows.first_tiles(shape))
    else:
        decided = _plainest(sketches) if kernel is None else _tiled(sketches, kernel, unit)
    made: Iterator[Any] = (applied(trace, workload.mod, rules) for trace in decided)
    if kernel is None and own is None and not any(map(_reuses, sketches)):
        simple = (schedule(workload.mod, unit.lanes) for schedule in (vector_reduction, odd_rows))
        made = chain((finished(sch, rules) for sch in simple), made)
    seen: set[int] = set()
    for sch in made:
        if sch is None or (digest := int(tvm_ffi.structural_hash(sch.mod))) in seen:
            continue
        seen.add(digest)
        yield sch
        if len(seen) == MOST:
            return


def unit_for(mod: Any, unit: VectorUnit) -> VectorUnit:
    """The unit with vectors as long as the blocks of the operator's kernel: of half vectors, it begins two
    multiplications a cycle.
    """
    kernel = _kernel_of(mod)
    halves = kernel is not None and 2 * kernel.spatial[-1] == unit.lanes
    return VectorUnit(unit.lanes // 2, unit.registers) if halves else unit


def _kernel_of(mod: Any) -> _Kernel | None:
    for name in (CONV, DEPTHWISE, MATMUL):
        block = block_named(mod, name)
        if block is None:
            continue
        axes = [(int(var.iter_type) == _SPATIAL, int(var.dom.extent)) for var in block.iter_vars]
        spatial = tuple(extent for is_spatial, extent in axes if is_spatial)
        reduction = tuple(extent for is_spatial, extent in axes if not is_spatial)
        if name == MATMUL:  # (..., rows, blocks, lanes)
            return _Kernel(name, spatial, reduction, (len(spatial) - 2, None, len(spatial) - 3))
        # The last are batch, blocks, height, width and lanes.
        return _Kernel(name, spatial, reduction, (len(spatial) - 4, len(spatial) - 3, len(spatial) - 2))
    return None


def _tiled(sketches: list[Sketch], kernel: _Kernel, unit: VectorUnit) -> Iterator[Sketch]:
    sketch = _blocks_innermost(sketches[min(_FUSING_DEEP, len(sketches) - 1)], kernel)
    blocks, rows, columns = (1 if axis is None else kernel.spatial[axis] for axis in kernel.axes)
    vector_bytes = kernel.spatial[-1] * _FLOAT_BYTES
    extents = Extents(blocks, rows, columns, kernel.reduction, vector_bytes, kernel.kind)
    for tiling in tilings(extents, unit.registers, unit.multiplies, keeps_sums=unit.keeps_sums):
        yield _decided(sketch, _tiles(kernel, tiling, unit), tiling.unroll_steps)


def _blocks_innermost(sketch: Sketch, kernel: _Kernel) -> Sketch:
    """The sketch with the loop over a tile's blocks inside the loops over its pixels: it holds one number for all
    blocks. The other order holds a vector of each pixel's number, or spills it (from 63 to 90 GFLOP/s for 2 x 13
    accumulators).
    """
    steps, decisions = sketch
    spatial, loops = len(kernel.spatial), 4 * len(kernel.spatial) + 2 * len(kernel.reduction)
    reordered = []
    for kind, inputs, attrs, outputs in steps:
        if kind == "Reorder" and len(inputs) == loops:
            block = inputs[kernel.axes[0] - spatial]
            *outer, vector = (loop for loop in inputs if loop != block)
            inputs = [*outer, block, vector]  # noqa: PLW2901
        reordered.append([kind, inputs, attrs, outputs])
    return [reordered, decisions]


def _tiles(kernel: _Kernel, tiling: Tiling, unit: VectorUnit) -> list[list[int]]:
    """Of each loop, as the sketch asks for them: four factors of a spatial one, two of a reduction."""
    inner = dict.fromkeys(range(len(kernel.spatial)), (1, 1))
    inner[len(kernel.spatial) - 1] = (1, kernel.spatial[-1])
    for axis, *factors in zip(kernel.axes, tiling.around, tiling.registers, strict=True):
        if axis is not None:
            inner[axis] = (factors[0], factors[1])
    spatial = [[extent // prod(inner[axis]), 1, *inner[axis]] for axis, extent in enumerate(kernel.spatial)]
    inner_axis = _inner_axis(kernel, tiling, unit)
    if inner_axis is not None:
        outer, between, *rest = spatial[inner_axis]
        spatial[inner_axis] = [between, outer, *rest]
    return spatial + [[extent // part, part] for extent, part in zip(kernel.reduction, tiling.reduction, strict=True)]


_STAYS_BYTES, _LEAVES_BYTES = 1 << 18, 1 << 20
"""the most of weights that stay in a second cache, and the least of an image that does not"""
_SHARED_WEIGHTS_BYTES, _SHARED_IMAGE_BYTES = 3 << 18, 1 << 15
"""The same for a unit that keeps sums: it reads weights again at little cost. Then each core computes rows of its own
from rows of its own. Otherwise it would read half of the image from another core, which may lie behind another third
cache. Two cores of Zen 5 took 7 to 14 % less time so where they were far apart, and as long where they were near."""
_FEWEST_STEPS, _MANY_STEPS = 12, 32
"""of the parallel loop over rows and columns, an even number; from the second on, any"""


def _inner_axis(kernel: _Kernel, tiling: Tiling, unit: VectorUnit) -> int | None:
    """The axis with the loop over tiles that runs inside those over other tiles.

    Of a product it is that of columns: a tile's weights stay in the second cache. Of a convolution it is that of blocks
    if all weights stay there and the image does not. Then the image is read once, not once for each tile of blocks.
    """
    if kernel.kind == MATMUL:
        return kernel.axes[2]
    blocks, *axes = kernel.axes
    if kernel.kind != CONV:
        return None
    depth, vector_bytes = prod(kernel.reduction), kernel.spatial[-1] * _FLOAT_BYTES
    channels = depth // prod(kernel.reduction[1:3])
    pixels = prod(1 if axis is None else kernel.spatial[axis] for axis in axes)
    image_bytes, weights_bytes = pixels * channels * _FLOAT_BYTES, depth * kernel.spatial[blocks] * vector_bytes
    if weights_bytes <= _STAYS_BYTES and image_bytes > _LEAVES_BYTES:
        return blocks
    steps = pixels // prod((*tiling.registers[1:], *tiling.around[1:]))
    balanced = steps >= _MANY_STEPS or (steps >= _FEWEST_STEPS and steps % 2 == 0)
    shared = weights_bytes <= _SHARED_WEIGHTS_BYTES and image_bytes > _SHARED_IMAGE_BYTES
    return blocks if unit.keeps_sums and shared and balanced else None


def _reuses(sketch: Sketch) -> bool:
    """Whether MetaSchedule tiles spatial loops. It does so where numbers are used again, for example in a product."""
    return any(kind == TILE and attrs[0] > _PARTS_OF_REDUCTION for kind, _, attrs, _ in sketch[0])


def _plainest(sketches: list[Sketch]) -> Iterator[Sketch]:
    """The sketch without a split reduction, if there is one; drawn tiles stay."""
    sketch = min(sketches, key=lambda sketch: sum(step[0] == "RFactor" for step in sketch[0]))
    yield _decided(sketch, [decision for at, decision in sketch[1] if sketch[0][at][0] == TILE], _SHORT_UNROLL)


def _decided(sketch: Sketch, tiles: Iterable[list[int]], unroll_steps: int) -> Sketch:
    """The sketch with these tiles and this unrolling; every block with an open location gets a loop nest of its own."""
    steps, open_steps = sketch
    tile = iter(tiles)
    decisions = []
    for at, _ in open_steps:
        kind, _, attrs, _ = steps[at]
        if kind == TILE:
            decisions.append([at, next(tile)])
        elif kind == CATEGORICAL:
            decisions.append([at, [int(choice) for choice in attrs[0]].index(unroll_steps)])
        else:
            decisions.append([at, AT_ROOT])
    return [steps, decisions]


def vector_reduction(mod: Any, lanes: int) -> Any | None:
    """A schedule of an operator with one reduction and an innermost spatial extent of whole vectors or half a one; None
    for others.

    The innermost axis is one vector, the reduction runs around it, and the cores share the other axes.
    """
    sch = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        reductions = [block for block in sch.get_child_blocks(sch.get_sblock("root")) if _is_reduction(sch, block)]
        return _scheduled(sch, reductions[0], lanes) if len(reductions) == 1 else None
    except MISFITS:
        return None


def odd_rows(mod: Any, lanes: int) -> Any | None:
    """A schedule of an operator without a reduction whose rows are long, and no whole vectors; None for others.

    MetaSchedule fuses all loops and splits them into vectors, which would begin in one row and end in the next. Here
    each row is a loop of its own, which LLVM divides into vectors and a rest.
    """
    sch = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        *others, last = sch.get_child_blocks(sch.get_sblock("root"))
        if any(_is_reduction(sch, block) for block in (*others, last)):
            return None
        for block in others:
            sch.compute_inline(block)
        *outer, row = sch.get_loops(last)
        extent = int(sch.get(row).extent)
        if extent % lanes == 0 or extent < _LONG_ROW * lanes or not outer:
            return None
        sch.parallel(sch.fuse(*outer))
    except MISFITS:
        return None
    return sch


def _is_reduction(sch: Any, block: Any) -> bool:
    return any(int(var.iter_type) != _SPATIAL for var in sch.get(block).iter_vars)


def _scheduled(sch: Any, block: Any, lanes: int) -> Any | None:
    for producer in sch.get_producers(block):
        sch.compute_inline(producer)
    variables, loops = sch.get(block).iter_vars, sch.get_loops(block)
    if len(variables) != len(loops):
        return None
    kinds = [int(var.iter_type) == _SPATIAL for var in variables]
    spatial = [loop for loop, is_spatial in zip(loops, kinds, strict=True) if is_spatial]
    reduced = [loop for loop, is_spatial in zip(loops, kinds, strict=True) if not is_spatial]
    extent = int(sch.get(spatial[-1]).extent) if spatial else 1
    lanes = lanes // 2 if extent == lanes // 2 else lanes  # of blocks of half a vector
    if extent % lanes:
        return None
    around, vector = sch.split(spatial[-1], [None, lanes])
    sch.reorder(*spatial[:-1], around, *reduced, vector)
    sch.parallel(sch.fuse(*spatial[:-1], around))
    sch.vectorize(vector)
    start = sch.decompose_reduction(block, reduced[0])
    sch.vectorize(sch.get_loops(start)[-1])
    return sch
