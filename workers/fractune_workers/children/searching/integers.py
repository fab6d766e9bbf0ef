"""The design space of products of whole numbers, and the first candidates in it.

MetaSchedule's rules would not put the dot products of the processor into a kernel with an epilogue, so this space is
made by hand. A tile of accumulators, rows by blocks of outputs, is summed up over the whole depth, and leaves through
the epilogue. A chunk of the output is a panel of weights, which stays in the first cache, times a run of rows. The rows
become whole numbers before, all at once or for the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from fractune_core.tir.kernel_names import INTEGER_SUMS, ROWS, SUMS
from fractune_workers.children.layouts.integers import INTEGERS
from fractune_workers.children.searching.epilogues import inline_epilogue
from fractune_workers.children.searching.register_tiles import Extents, tilings
from fractune_workers.children.searching.sketches import block_named
from fractune_workers.children.tvm_api.dot_products import DotProduct, dot_product

_MOST_ROWS, _MOST_BLOCKS, _MOST_STEPS = 16, 6, 4
"""of a tile, all of it unrolled"""
_VECTOR_BYTES = 64
BEFORE, BY_ROWS = 0, 1
"""sketches: where the rows become whole numbers"""
_RUN = 128
"""rows of a chunk, where it does not have all"""


def is_integer(mod: Any) -> bool:
    return _extents_of(mod) is not None


def space(usual: Any, mod: Any, target: tvm.target.Target) -> Any:
    """A space generator with the postprocs and mutators of the `usual` one."""
    return ms.space_generator.ScheduleFn(
        partial(_sketches, dot=_dot_of(mod, target)),
        sch_rules=[],
        postprocs=usual.postprocs,
        mutator_probs=usual.mutator_probs,
    )


def first_tiles(mod: Any, registers: int) -> Iterator[tuple[int, list[list[int]]]]:
    """The likeliest first: which sketch, and its tiles of rows, of blocks and of the depth."""
    found = _extents_of(mod)
    if found is None:
        return
    rows, blocks, groups = found
    extents = Extents(blocks, 1, rows, (groups,), _VECTOR_BYTES)
    fitting = (tiling.registers for tiling in tilings(extents, registers))
    tiles = ((columns, inner) for inner, _, columns in fitting if columns <= _MOST_ROWS and inner <= _MOST_BLOCKS)
    for (row, block), (sketch, run) in product(dict.fromkeys(tiles), ((BEFORE, rows), (BY_ROWS, _RUN), (BEFORE, _RUN))):
        count = _divisor(rows // row, max(run // row, 1))
        yield sketch, [[rows // row // count, count, row], [blocks // block, block], [groups, 1]]


def _divisor(extent: int, limit: int) -> int:
    """The largest up to the limit."""
    return next(factor for factor in range(min(extent, limit), 0, -1) if extent % factor == 0)


def _extents_of(mod: Any) -> tuple[int, int, int] | None:
    """Rows, blocks of outputs, and groups of the depth; None for another operator."""
    block = block_named(mod, INTEGER_SUMS)
    if block is None:
        return None
    *_, rows, blocks, _, groups, _ = (int(var.dom.extent) for var in block.iter_vars)
    return rows, blocks, groups


def _dot_of(mod: Any, target: tvm.target.Target) -> DotProduct:
    """The instruction for the operator. Raises ValueError when the target has none."""
    sch = Schedule(mod, debug_mask="none")
    numbers, output = (sch.get(sch.get_sblock(name, "main")) for name in (ROWS, SUMS))
    data, lanes = str(numbers.writes[0].source.dtype), int(output.iter_vars[-1].dom.extent)
    name = next(name for name, each in INTEGERS.items() if each.data == data)
    found = dot_product(name, target, lanes)
    if found is None:
        raise ValueError(f"the target has no dot product of {lanes} lanes for {data}")
    return found


def _sketches(sch: Any, dot: DotProduct) -> list[Any]:
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
    sch.compute_at(sums, tile, preserve_unit_loops=True)
    for loop in (row, block):
        sch.unroll(loop)
    sch.vectorize(lane)
    if by_rows:
        sch.compute_at(numbers, chunk, preserve_unit_loops=True)
        _vectorize_rows(sch, numbers, dot)
        sch.parallel(sch.fuse(*outer, chunk))
    else:
        sch.parallel(sch.fuse(*_vectorize_rows(sch, numbers, dot)))
        sch.parallel(sch.fuse(*outer, chunk, panel))
    _sum_up(sch, sums, dot)  # TVM makes no loop around a dot product parallel


def _sum_up(sch: Any, sums: Any, dot: DotProduct) -> None:
    *_, row, block, lane, groups, number = sch.get_loops(sums)
    depth, step = sch.split(groups, sch.sample_perfect_tile(groups, 2, _MOST_STEPS))
    sch.reorder(depth, step, row, block, lane, number)
    start = sch.decompose_reduction(sums, depth)
    sch.tensorize(lane, dot.name)
    for loop in (step, row, block):
        sch.unroll(loop)
    *_, row, block, lane = sch.get_loops(start)
    for loop in (row, block):
        sch.unroll(loop)
    sch.vectorize(lane)


def _vectorize_rows(sch: Any, numbers: Any, dot: DotProduct) -> list[Any]:
    """The loops over whole rows. A row is converted in vectors; the last may be short."""
    *outer, column = sch.get_loops(numbers)
    _, vector = sch.split(column, [None, dot.lanes])
    sch.vectorize(vector)
    return outer
