"""The design space of products and convolutions of whole numbers, and the first candidates in it.

MetaSchedule's rules would not put the dot products of the processor into a kernel with an epilogue, so this space is
made by hand. A tile of accumulators, rows by blocks of outputs, is summed up over the whole depth, and leaves through
the epilogue. A chunk of the output is a panel of weights, which stays in the first cache, times a run of rows. The rows
become whole numbers before, all at once or for the chunk.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import tvm
from tvm.s_tir import Schedule

from fractune_core.tir.canonical import COLUMNS, INTEGER_SUMS, ROWS, SUMS
from fractune_workers.children.layouts.kernels.integers import INTEGERS
from fractune_workers.children.searching.spaces.register_tiles import Extents, divisors, tilings
from fractune_workers.children.searching.spaces.sketches import block_named, by_hand, extents_of, inline_epilogue
from fractune_workers.children.tvm_api.dot_intrinsics import DotProduct, dot_product, pairing, register_dot_intrinsics

_MOST_ROWS, _MOST_BLOCKS, _MOST_STEPS = 16, 6, 4
"""of a tile, all of it unrolled"""
_MOST_ROWS_OF_IMAGE = 4
_OF_PRODUCT = 2
"""reduced loops: groups, and the numbers of a group"""
_VECTOR_BYTES = 64
BEFORE, BY_ROWS = 0, 1
"""sketches: where the rows become whole numbers"""
_RUN = 128
"""rows of a chunk, where it does not have all"""


def is_integer(mod: Any) -> bool:
    return _extents_of(mod) is not None


def space(usual: Any, mod: Any, target: tvm.target.Target) -> Any:
    """A space generator with the postprocs and mutators of the `usual` one."""
    return by_hand(partial(_sketches, dot=_dot_of(mod, target)), usual)


def first_tiles(mod: Any, registers: int) -> Iterator[tuple[int, list[list[int]]]]:
    """The likeliest first: which sketch, and its tiles. They are those of rows, blocks and depth of a product; of a
    convolution those of rows, columns, blocks, and the input channels of a block.
    """
    found = _extents_of(mod)
    if found is None:
        return
    spatial, reduction = found
    if len(reduction) > 1:
        yield from _tiles_of_image(spatial, reduction, registers)
        return
    rows, blocks = spatial
    extents = Extents(blocks, 1, rows, reduction, _VECTOR_BYTES)
    tiles = ((columns, inner) for inner, _, columns in _accumulators(extents, registers))
    for (row, block), (sketch, run) in product(dict.fromkeys(tiles), ((BEFORE, rows), (BY_ROWS, _RUN), (BEFORE, _RUN))):
        count = divisors(rows // row, max(run // row, 1))[-1]
        yield sketch, [[rows // row // count, count, row], [blocks // block, block], [*reduction, 1]]


def _tiles_of_image(
    spatial: tuple[int, ...], reduction: tuple[int, ...], registers: int
) -> Iterator[tuple[int, list[list[int]]]]:
    blocks, rows, columns = spatial
    extents = Extents(blocks, rows, columns, reduction, _VECTOR_BYTES)
    for block, row, column in dict.fromkeys(_accumulators(extents, registers)):
        tiles = [[rows // row, row], [columns // column, column], [blocks // block, block], [reduction[-1], 1]]
        yield BEFORE, tiles


def _accumulators(extents: Extents, registers: int) -> Iterator[tuple[int, int, int]]:
    """Tiles of blocks, rows and columns."""
    for tiling in tilings(extents, registers):
        blocks, rows, columns = tiling.registers
        if columns <= _MOST_ROWS and rows <= _MOST_ROWS_OF_IMAGE and blocks <= _MOST_BLOCKS:
            yield blocks, rows, columns


def _extents_of(mod: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Of the spatial loops and the reduced ones, without a batch, lanes and the numbers of a group; None for another
    operator. A product has rows and blocks of outputs; a convolution has blocks, rows and columns.
    """
    block = block_named(mod, INTEGER_SUMS)
    if block is None:
        return None
    spatial, (*reduction, _) = extents_of(block)
    return spatial[-3:-1] if len(reduction) == 1 else spatial[-4:-1], tuple(reduction)


def _dot_of(mod: Any, target: tvm.target.Target) -> DotProduct:
    """The instruction for the operator. Raises ValueError when the target has none."""
    sch = Schedule(mod, debug_mask="none")
    numbers, output = (sch.get(sch.get_sblock(name, "main")) for name in (ROWS, SUMS))
    data, lanes = str(numbers.writes[0].source.dtype), int(output.iter_vars[-1].dom.extent)
    name = next(name for name, each in INTEGERS.items() if each.data == data)
    found = dot_product(name, target, lanes)
    register_dot_intrinsics()
    if found is None:
        raise ValueError(f"the target has no dot product of {lanes} lanes for {data}")
    return found


def _sketches(sch: Any, dot: DotProduct) -> list[Any]:
    _, reduction = extents_of(sch.get(sch.get_sblock(INTEGER_SUMS, "main")))
    if len(reduction) > _OF_PRODUCT:
        _schedule_image(sch, dot)
        return [sch]
    made = [sch, sch.copy()]
    for each, by_rows in zip(made, (False, True), strict=True):
        _schedule(each, dot, by_rows=by_rows)
    return made


def _schedule(sch: Any, dot: DotProduct, *, by_rows: bool) -> None:
    """The steps are: (1) Element-wise operators become part of the output. (2) Chunks and tiles of the output. (3) The
    rows. (4) The sums of a tile in accumulators.
    """
    numbers, sums, output = (sch.get_sblock(name, "main") for name in (ROWS, INTEGER_SUMS, SUMS))
    inline_epilogue(sch, output)
    *outer, rows, blocks, lane = sch.get_loops(output)
    chunk, tile, row = sch.split(rows, sch.sample_perfect_tile(rows, 3, _MOST_ROWS))
    panel, block = sch.split(blocks, sch.sample_perfect_tile(blocks, 2, _MOST_BLOCKS))
    sch.reorder(*outer, chunk, panel, tile, row, block, lane)
    _finish_tile(sch, sums, tile, [row, block, lane])
    if by_rows:
        sch.compute_at(numbers, chunk, preserve_unit_loops=True)
        _vectorize_rows(sch, numbers, dot)
        sch.parallel(sch.fuse(*outer, chunk))
    else:
        sch.parallel(sch.fuse(*_vectorize_rows(sch, numbers, dot)))
        sch.parallel(sch.fuse(*outer, chunk, panel))
    *_, row, block, lane, groups, number = sch.get_loops(sums)
    _pair_columns(sch, dot)
    _sum_up(sch, sums, dot, [row, block], lane, [groups], number)


def _pair_columns(sch: Any, dot: DotProduct) -> None:
    """Weights that are computed become whole numbers before, by vectors."""
    names = [str(sch.get(block).name_hint) for block in sch.get_child_blocks(sch.get_sblock("root"))]
    if COLUMNS in names:
        *outer, lane, _ = sch.get_loops(sch.get_sblock(COLUMNS, "main"))
        sch.parallel(sch.fuse(*outer[:-1]))
        sch.tensorize(lane, pairing(dot.lanes))


def _schedule_image(sch: Any, dot: DotProduct) -> None:
    """As `_schedule`, of a convolution: its rows are the whole padded image, which becomes whole numbers before."""
    numbers, sums, output = (sch.get_sblock(name, "main") for name in (ROWS, INTEGER_SUMS, SUMS))
    inline_epilogue(sch, output)
    *outer, blocks, rows, columns, lane = sch.get_loops(output)
    row_tile, row = sch.split(rows, sch.sample_perfect_tile(rows, 2, _MOST_ROWS_OF_IMAGE))
    tile, column = sch.split(columns, sch.sample_perfect_tile(columns, 2, _MOST_ROWS))
    panel, block = sch.split(blocks, sch.sample_perfect_tile(blocks, 2, _MOST_BLOCKS))
    sch.reorder(*outer, panel, row_tile, tile, row, column, block, lane)
    _finish_tile(sch, sums, tile, [row, column, block, lane])
    sch.parallel(sch.fuse(*_vectorize_rows(sch, numbers, dot)))
    sch.parallel(sch.fuse(*outer, panel, row_tile))
    *_, block, row, column, lane, co, ry, rx, ci, number = sch.get_loops(sums)
    _sum_up(sch, sums, dot, [row, column, block], lane, [co, ry, rx, ci], number)


def _finish_tile(sch: Any, sums: Any, tile: Any, inside: list[Any]) -> None:
    """Compute the sums of a tile where the output of the tile is made, in unrolled loops around a vector."""
    sch.compute_at(sums, tile, preserve_unit_loops=True)
    *unrolled, lane = inside
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)


def _sum_up(sch: Any, sums: Any, dot: DotProduct, tile: list[Any], lane: Any, reduced: list[Any], number: Any) -> None:
    """The sums of a tile over the reduced loops, by dot products of lanes and the numbers of a group. This comes last:
    TVM makes no loop around a dot product parallel.
    """
    *around, groups = reduced
    depth, step = sch.split(groups, sch.sample_perfect_tile(groups, 2, _MOST_STEPS))
    sch.reorder(*around, depth, step, *tile, lane, number)
    start = sch.decompose_reduction(sums, [*around, depth][0])
    sch.tensorize(lane, dot.name)
    for loop in (step, *tile):
        sch.unroll(loop)
    *unrolled, lane = sch.get_loops(start)[-len(tile) - 1 :]
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)


def _vectorize_rows(sch: Any, numbers: Any, dot: DotProduct) -> list[Any]:
    """The loops over whole rows. A row is converted in vectors; the last may be short."""
    *outer, column = sch.get_loops(numbers)
    _, vector = sch.split(column, [None, dot.lanes])
    sch.vectorize(vector)
    return outer
