"""The design space of operators that reduce rows, such as softmax and normalisations, and the first candidates in it.

MetaSchedule's rules walk a reduced row number by number, because a sum in order cannot use vectors, and treat several
reductions apart. Here all passes over a row are done before the next row begins, so that it stays in the first cache. A
reduction adds vectors, then halves of one vector.
"""

from collections.abc import Iterator
from itertools import chain
from math import prod
from typing import Any

from tvm.s_tir import Schedule

from fractune_workers.children.searching.spaces.register_tiles import divisors
from fractune_workers.children.searching.spaces.sketches import MISFITS, SPATIAL, by_hand

_MOST_VECTORS, _MOST_ROWS = 8, 64
"""that one step of a loop over a row computes, and rows of one step of the parallel loop"""
_FEWEST_LANES = 4
_FIRST_VECTORS = ((2, 1), (4, 2), (1, 1), (4, 4), (8, 4))
"""The likeliest first: vectors at a time in reductions, and in other passes over a row."""
_STEPS = 16
"""of the parallel loop at least, so that some cores can share them"""


def row_shape(mod: Any, lanes: int) -> tuple[int, int] | None:
    """Rows of an operator whose reductions are all over rows, and vectors of at most `lanes` in a row. None for another
    operator, and where no vector divides a row.
    """
    sch = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        shape = _shape(sch)
        width = _width(shape[1], lanes) if shape else 0
        if shape is None or not width:
            return None
        _schedule(sch, shape[0], width)
    except MISFITS:
        return None
    return shape[0], shape[1] // width


def space(mod: Any, usual: Any, lanes: int) -> Any:
    """A space generator for an operator with a `row_shape`, with the postprocs and mutators of the `usual` one."""
    rows, columns = _shape(Schedule(mod, debug_mask="none")) or (1, lanes)

    def sketch(sch: Any) -> list[Any]:
        _schedule(sch, rows, _width(columns, lanes))
        return [sch]

    return by_hand(sketch, usual)


def first_tiles(shape: tuple[int, int]) -> Iterator[list[list[int]]]:
    """The likeliest first, for a `row_shape`: vectors at a time in reductions, rows of a parallel step, and vectors at
    a time in other passes.
    """
    rows, vectors = shape
    together = divisors(rows, max(1, min(_MOST_ROWS, rows // _STEPS)))[-1]
    for sizes in _FIRST_VECTORS:
        reduced, others = (divisors(vectors, most)[-1] for most in sizes)
        yield [[vectors // reduced, reduced], [rows // together, together], [vectors // others, others]]


def _width(columns: int, lanes: int) -> int:
    """Of the widest vector that divides a row; 0 without one."""
    while lanes >= _FEWEST_LANES and columns % lanes:
        lanes //= 2
    return lanes if lanes >= _FEWEST_LANES else 0


def _shape(sch: Any) -> tuple[int, int] | None:
    """Rows and columns."""
    blocks = [sch.get(block) for block in _blocks(sch)]
    found = {_reduced_rows(block) for block in blocks if _reduces(block)}
    return found.pop() if len(found) == 1 else None


def _blocks(sch: Any) -> list[Any]:
    """In the order of the module: the last one writes the result."""
    return list(sch.get_child_blocks(sch.get_sblock("root", "main")))


def _reduces(block: Any) -> bool:
    return any(int(var.iter_type) != SPATIAL for var in block.iter_vars)


def _reduced_rows(block: Any) -> tuple[int, int] | None:
    """Rows and columns of a reduction over the last axis of a buffer; None for any other reduction."""
    *outer, last = block.iter_vars
    if int(last.iter_type) == SPATIAL or any(int(var.iter_type) != SPATIAL for var in outer):
        return None
    single = {var.var for var in outer if int(var.dom.extent) == 1}
    element = [var.var for var in block.iter_vars if var.var not in single]
    if not any([index for index in _indices(read) if index not in single] == element for read in block.reads):
        return None
    return prod(int(var.dom.extent) for var in outer), int(last.dom.extent)


def _indices(read: Any) -> list[Any]:
    """Of the element that a block reads, without numbers."""
    return [each.min for each in read.region if not hasattr(each.min, "value")]


def _schedule(sch: Any, rows: int, lanes: int) -> None:
    """The steps are: (1) An element-wise operator with one reader becomes part of it. (2) Reductions are split into
    steps for vectors. (3) The cores share the rows, and every block is computed row by row. (4) Vectors.
    """
    *earlier, last = _blocks(sch)
    kept = [block for block in reversed(earlier) if not _inlined(sch, block, rows)]
    blocks = [*reversed(kept), last]
    reductions = [block for block in blocks if _reduces(sch.get(block))]
    parts = _parted(sch, reductions, lanes)
    row = _row_loop(sch, last, rows)
    for block in reversed(blocks):
        if block is not last:
            sch.compute_at(block, row, preserve_unit_loops=True)
        for part in reversed(parts[reductions.index(block)] if block in reductions else []):
            sch.compute_at(part, row, preserve_unit_loops=True)
    for part in chain.from_iterable(parts):
        _vectorize_reduction(sch, part)
    for block in reductions:
        sch.unroll(_halves(sch, block))
    _vectorize_others(sch, [block for block in blocks if block not in reductions], lanes)


def _inlined(sch: Any, block: Any, rows: int) -> bool:
    """Inline an operator that has a value for each element; whether that was possible."""
    found = sch.get(block)
    if _reduces(found) or prod(int(var.dom.extent) for var in found.iter_vars) == rows:
        return False
    if len(sch.get_consumers(block)) != 1:
        return False
    sch.compute_inline(block)
    return True


def _row_loop(sch: Any, last: Any, rows: int) -> Any:
    """The inner loop over rows, inside the parallel one."""
    loops = sch.get_loops(last)
    extents = [int(sch.get(loop).extent) for loop in loops]
    count = next(at for at in range(1, len(loops) + 1) if prod(extents[:at]) == rows)
    fused = sch.fuse(*loops[:count])
    shared, row = sch.split(fused, sch.sample_perfect_tile(fused, 2, _MOST_ROWS))
    sch.parallel(shared)
    return row


def _parted(sch: Any, reductions: list[Any], lanes: int) -> list[list[Any]]:
    """For each reduction the blocks that reduce a row to a few vectors, these to one vector, and one vector to its
    half, a quarter and so on. All reductions have one tile.
    """
    made, tile = [], None
    for block in reductions:
        axis = len(sch.get(block).writes[0].region)
        vectors, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
        tile = sch.sample_perfect_tile(vectors, 2, _MOST_VECTORS) if tile is None else tile
        _, some = sch.split(vectors, tile)
        parts = [sch.rfactor(sch.fuse(some, lane), axis)]
        width = lanes
        while width > 1:
            _, kept = sch.split(sch.get_loops(block)[-1], [None, width])
            parts.append(sch.rfactor(kept, axis))
            width //= 2
        made.append(parts)
    return made


def _nest(sch: Any, block: Any) -> list[tuple[Any, bool]]:
    """The loops of a block inside the loop over rows, each with whether it reduces."""
    variables = sch.get(block).iter_vars
    loops = sch.get_loops(block)[-len(variables) :]
    return [(loop, int(var.iter_type) != SPATIAL) for loop, var in zip(loops, variables, strict=True)]


def _vectorize_reduction(sch: Any, part: Any) -> None:
    nest = _nest(sch, part)
    reduced = [loop for loop, reduces in nest if reduces]
    vector = _longest(sch, [loop for loop, reduces in nest if not reduces])
    sch.reorder(*reduced, vector)
    sch.vectorize(vector)
    start = sch.decompose_reduction(part, reduced[0])
    sch.vectorize(_longest(sch, [loop for loop, _ in _nest(sch, start)]))


def _halves(sch: Any, block: Any) -> Any:
    """The loop of a reduction that is left: over two numbers."""
    return next(loop for loop, reduces in _nest(sch, block) if reduces)


def _longest(sch: Any, loops: list[Any]) -> Any:
    """The only loop of more than one step: the others are over one row."""
    return max(loops, key=lambda loop: int(sch.get(loop).extent))


def _vectorize_others(sch: Any, blocks: list[Any], lanes: int) -> None:
    tile = None
    for block in blocks:
        loop = sch.get_loops(block)[-1]
        if int(sch.get(loop).extent) % lanes:
            continue
        vectors, lane = sch.split(loop, [None, lanes])
        tile = sch.sample_perfect_tile(vectors, 2, _MOST_VECTORS) if tile is None else tile
        _, some = sch.split(vectors, tile)
        sch.unroll(some)
        sch.vectorize(lane)
