"""Tiles of a blocked kernel for its processor's registers: computed, not searched.

A tile is `blocks` x `rows` x `columns` accumulators, each a vector of output channels. One step of the reduction loads
`blocks` vectors of weights and `rows` x `columns` single numbers, and multiplies each with each. With many
accumulators, few loads serve many multiplications, and no multiplication waits for the one before it. With too many,
they spill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from fractune_workers.children.tvm_api.prefetches.products import FROM_MEMORY_BYTES

MOST_BLOCKS, MOST_PIXELS = 9, 28
_IN_FLIGHT = 8
"""multiplications that two units of four cycles' latency have under way"""
_IN_FLIGHT_OF_ROWS = 6
"""the same where the loop over the next tile is inside: its multiplications overlap with these"""
_ROOMY, _SPARE = 0.65, 2
"""The part of the registers above which the compiler begins to spill in tiles of one block. Registers that the compiler
needs for itself in all other tiles."""
_LOAD = 0.03
_LOAD_OF_PRODUCT, _WEIGHTS_AGAIN = 0.2, 0.4
"""of a matrix product: the cost of a load, and that of reading weights once more, which the columns of a tile share"""
_STREAMED, _STREAMED_BYTES, _FEW_PIXELS = 1.4, 20000, 4
"""More weights than this come from beyond the first cache for every tile, and few pixels do not hide the loads."""
_LONGEST_ROW = 28
_LOOPS_OF_POINTWISE = 2
"""over blocks of input channels, and the channels in a block"""
_FIRST_CACHE_BYTES = 32768
_LONGEST_CHUNKS = 16, 64
"""steps, of a reduction that is one loop"""
_FEW_BLOCKS = 4


@dataclass(frozen=True)
class Extents:
    """Of the loops of a blocked kernel."""

    blocks: int
    """of output channels"""
    rows: int
    columns: int
    reduction: tuple[int, ...]
    """the outermost first"""
    block_bytes: int
    """of one vector"""
    product: bool = False
    """whether it is a matrix product: its columns are rows of the left operand"""


@dataclass(frozen=True)
class Tiling:
    """Inner factors of loops."""

    registers: tuple[int, int, int]
    """blocks, rows and columns of the accumulators"""
    around: tuple[int, int, int]
    """tiles that one chunk of the reduction serves"""
    reduction: tuple[int, ...]
    """of one chunk of the reduction"""
    unroll_steps: int


def tilings(extents: Extents, registers: int) -> list[Tiling]:
    """The likeliest first: by the multiplications that one cycle can start, by loads, and by the risk of spills."""
    rated = [each for tile in _tiles(extents, registers) for each in _variants(extents, tile, registers)]
    return [tiling for _, tiling in sorted(rated, key=lambda each: each[0])]


def _tiles(extents: Extents, registers: int) -> Iterator[tuple[int, int, int]]:
    for blocks in divisors(extents.blocks, MOST_BLOCKS):
        for rows in divisors(extents.rows, MOST_PIXELS):
            for columns in divisors(extents.columns, MOST_PIXELS):
                # Weights that serve one pixel are read from memory as they are multiplied.
                weights = blocks if rows * columns > 1 else 0
                if blocks * rows * columns + weights + 1 <= registers:
                    yield blocks, rows, columns


def divisors(extent: int, limit: int) -> list[int]:
    """All up to the limit, the largest last."""
    return [factor for factor in range(1, min(extent, limit) + 1) if extent % factor == 0]


def _variants(extents: Extents, tile: tuple[int, int, int], registers: int) -> Iterator[tuple[float, Tiling]]:
    """Cost and tiling for each way to order the loops around a tile."""
    chunks = _chunks(extents.reduction)
    short, middle, long = chunks[0], chunks[min(1, len(chunks) - 1)], chunks[-1]
    if extents.product:
        from_memory = prod(extents.reduction) * extents.blocks * extents.block_bytes >= FROM_MEMORY_BYTES
        chunk, other = (short, middle) if from_memory else (middle, short)
        yield from _variants_of_product(tile, chunk, other, extents.columns)
        return
    cost = _cost(tile, registers, _IN_FLIGHT) * (_STREAMED if _streams(extents, tile) else 1.0)
    alone = (1, 1, 1)
    yield cost, Tiling(tile, alone, middle, 64)
    yield cost + 0.01, Tiling(tile, alone, short, 64)
    yield cost + 0.02, Tiling(tile, alone, middle, 16)
    cost = _cost(tile, registers, _IN_FLIGHT_OF_ROWS)
    rows, columns = extents.rows // tile[1], extents.columns // tile[2]
    # One block of channels at a time serves all rows: best where weights are streamed, and read once.
    once = 0.98 if _reads_once(extents, tile) else 1.03
    if 1 < rows <= _LONGEST_ROW:
        yield once * cost, Tiling(tile, (1, rows, 1), short, 64)
    if 1 < columns <= _LONGEST_ROW:
        yield (once + 0.01) * cost, Tiling(tile, (1, 1, columns), short, 64)
    if 1 < columns <= _LONGEST_ROW:
        yield 1.04 * cost, Tiling(tile, (1, 1, columns), long, 16)
    if 1 < rows <= _LONGEST_ROW:
        yield 1.05 * cost, Tiling(tile, (1, rows, 1), long, 16)


def _variants_of_product(
    tile: tuple[int, int, int], chunk: tuple[int, ...], other: tuple[int, ...], columns: int
) -> Iterator[tuple[float, Tiling]]:
    """The loop over tiles of columns runs inside the one over blocks. So a tile's weights stay in the second cache, and
    each tile of columns reads them once more. Measured: no tile that fits the registers spills. Weights from memory are
    requested by chunks, and short ones spread the requests.
    """
    loads = _loads(tile)
    in_flight = max(1.0, loads, _IN_FLIGHT / prod(tile))
    cost = in_flight + _LOAD_OF_PRODUCT * loads + _WEIGHTS_AGAIN / tile[2]
    alone = (1, 1, 1)
    yield cost, Tiling(tile, alone, chunk, 64)
    yield cost + 0.01, Tiling(tile, alone, other, 64)
    yield cost + 0.02, Tiling(tile, alone, chunk, 16)
    around = columns // tile[2]
    if 1 < around <= _LONGEST_ROW:
        yield cost + 0.06, Tiling(tile, (1, 1, around), min(chunk, other), 64)


def _loads(tile: tuple[int, int, int]) -> float:
    """For each multiplication."""
    blocks, rows, columns = tile
    return (blocks + rows * columns) / prod(tile)


def _cost(tile: tuple[int, int, int], registers: int, in_flight: int) -> float:
    """Cycles a multiplication, over the fewest possible."""
    accumulators, loads = prod(tile), _loads(tile)
    return max(1.0, loads, in_flight / accumulators) * _spills(tile, registers) + _LOAD * loads


def _spills(tile: tuple[int, int, int], registers: int) -> float:
    """The expected cost of spills."""
    if prod(tile) + tile[0] + 1 > registers - _SPARE:
        return 1.25
    return 1.15 if tile[0] == 1 and prod(tile) > _ROOMY * registers else 1.0


def _reads_once(extents: Extents, tile: tuple[int, int, int]) -> bool:
    """Whether a tile's weights do not fit into the first cache, and a pixel is read for one output only (1 x 1)."""
    pointwise = sum(extent > 1 for extent in extents.reduction) <= _LOOPS_OF_POINTWISE
    return pointwise and prod(extents.reduction) * tile[0] * extents.block_bytes > _FIRST_CACHE_BYTES


def _streams(extents: Extents, tile: tuple[int, int, int]) -> bool:
    blocks, rows, columns = tile
    return prod(extents.reduction) * blocks * extents.block_bytes > _STREAMED_BYTES and rows * columns < _FEW_PIXELS


def _chunks(reduction: Sequence[int]) -> list[tuple[int, ...]]:
    """Inner factors of the reduction's loops, the shortest chunk first: from the innermost loops outwards."""
    found: list[tuple[int, ...]]
    if len(reduction) == 1:
        found = [(divisors(reduction[0], longest)[-1],) for longest in _LONGEST_CHUNKS]
    else:
        found = [(*(1,) * at, *reduction[at:]) for at in range(len(reduction) - 1, 0, -1)]
    distinct = list(dict.fromkeys(found))
    if len(distinct) == 1:
        distinct.append((divisors(reduction[0], _FEW_BLOCKS)[-1], *distinct[0][1:]))
    return list(dict.fromkeys(distinct))
