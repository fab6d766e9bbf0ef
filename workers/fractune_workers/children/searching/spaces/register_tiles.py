"""Tiles of a blocked kernel for its processor's registers: computed, not searched.

A tile is `blocks` x `rows` x `columns` accumulators, each a vector of output channels. One step of the reduction loads
`blocks` vectors of weights and `rows` x `columns` single numbers, and multiplies each with each. With many
accumulators, few loads serve many multiplications, and no multiplication waits for the one before it. With too many,
they spill.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from fractune_core.tir.canonical import CONV, DEPTHWISE, MATMUL
from fractune_workers.children.tvm_api.prefetches import FROM_MEMORY_BYTES

MOST_BLOCKS, MOST_PIXELS = 9, 28
_IN_FLIGHT = 8
"""multiplications that two units of four cycles' latency have under way"""
_IN_FLIGHT_OF_ROWS = 6
"""the same where the loop over the next tile is inside: its multiplications overlap with these"""
_ROOMY, _SPARE = 0.65, 2
"""The part of the registers above which the compiler begins to spill in tiles of one block. Registers that the compiler
needs for itself in all other tiles."""
_LOAD, _SPILLED = 0.03, 0.3
_LOAD_OF_PRODUCT, _WEIGHTS_AGAIN = 0.2, 0.4
"""of a matrix product: the cost of a load, and that of reading weights once more, which the columns of a tile share"""
_STREAMED, _STREAMED_BYTES, _FEW_PIXELS = 1.4, 20000, 4
"""More weights than this come from beyond the first cache for every tile, and few pixels do not hide the loads."""
_LONGEST_ROW = 28
_LOOPS_OF_PLAIN = 3
"""over channels, and the kernel's rows and columns"""
_LOOPS_OF_POINTWISE = 2
"""over blocks of input channels, and the channels in a block"""
_FIRST_CACHE_BYTES = 32768
_LONGEST_CHUNKS = 16, 64
"""steps, of a reduction that is one loop"""
_FEW_BLOCKS = 4
_UNROLLED = 64
"""steps at most, where loops are unrolled"""


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
    kind: str = CONV
    """of kernel: CONV, DEPTHWISE, or MATMUL with rows of the left operand as its columns"""

    @property
    def is_plain(self) -> bool:
        """Whether it is a convolution of a plain image: its numbers come one by one, not in blocks of channels."""
        return self.kind == CONV and len(self.reduction) == _LOOPS_OF_PLAIN


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


def tilings(extents: Extents, registers: int, multiplies: int = 2, *, keeps_sums: bool = False) -> list[Tiling]:
    """The likeliest first: by the multiplications that one cycle can start (`VectorUnit.multiplies`), by where sums
    are best kept (`VectorUnit.keeps_sums`), by loads, and by the risk of spills.
    """
    variants = _variants
    if extents.kind != MATMUL and (multiplies == 1 or keeps_sums):
        variants = _variants_of_one if multiplies == 1 else _variants_of_kept_sums
    rated = [each for tile in _tiles(extents, registers) for each in variants(extents, tile, registers)]
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
    if extents.kind == MATMUL:
        from_memory = prod(extents.reduction) * extents.blocks * extents.block_bytes >= FROM_MEMORY_BYTES
        chunk, other = (short, middle) if from_memory else (middle, short)
        yield from _variants_of_product(tile, chunk, other, extents.columns)
        return
    cost = _cost(extents, tile, registers, _IN_FLIGHT) * (_STREAMED if _streams(extents, tile) else 1.0)
    alone = (1, 1, 1)
    yield cost, Tiling(tile, alone, middle, _UNROLLED)
    yield cost + 0.01, Tiling(tile, alone, short, _UNROLLED)
    yield cost + 0.02, Tiling(tile, alone, middle, 16)
    cost = _cost(extents, tile, registers, _IN_FLIGHT_OF_ROWS)
    rows, columns = extents.rows // tile[1], extents.columns // tile[2]
    # One block of channels at a time serves all rows: best where weights are streamed, and read once.
    once = 0.98 if _reads_once(extents, tile) else 1.03
    if 1 < rows <= _LONGEST_ROW:
        yield once * cost * _spills_unrolled(tile, rows, short, registers), Tiling(tile, (1, rows, 1), short, _UNROLLED)
    if 1 < columns <= _LONGEST_ROW:
        unrolled = _spills_unrolled(tile, columns, short, registers)
        yield (once + 0.01) * cost * unrolled, Tiling(tile, (1, 1, columns), short, _UNROLLED)
    if 1 < columns <= _LONGEST_ROW:
        yield 1.04 * cost, Tiling(tile, (1, 1, columns), long, 16)
    if 1 < rows <= _LONGEST_ROW:
        yield 1.05 * cost, Tiling(tile, (1, rows, 1), long, 16)


_SUMS = 8, 10
"""accumulators that keep one multiplication a cycle going; more than the second number lengthen the code alone"""


def _variants_of_one(extents: Extents, tile: tuple[int, int, int], registers: int) -> Iterator[tuple[float, Tiling]]:
    """As `_variants`, where a cycle begins one multiplication. Loads hardly matter, and weights never do that serve
    several rows: their sums would go to memory and back with each chunk.
    """
    return _alone(extents, tile, _cost_of_one(extents, tile, registers))


def _variants_of_kept_sums(
    extents: Extents, tile: tuple[int, int, int], registers: int
) -> Iterator[tuple[float, Tiling]]:
    """As `_variants`, where weights are read again at little cost, and sums stay in registers until they are done."""
    blocks, rows, columns = tile
    cost = _cost(extents, tile, registers, _IN_FLIGHT) + _WEIGHTS_AGAIN / (rows * columns)
    if extents.kind == DEPTHWISE:  # the weights of a chunk are in registers too
        chunk = _chunks(extents.reduction)[0]
        cost += _SPILLED * (prod(tile) + blocks * prod(chunk) >= registers - _SPARE)
    return _alone(extents, tile, cost)


def _alone(extents: Extents, tile: tuple[int, int, int], cost: float) -> Iterator[tuple[float, Tiling]]:
    """The tile without others that a chunk of the reduction serves."""
    short, *longer = _chunks(extents.reduction)
    middle = [*longer, short][0]
    for more, chunk, unroll_steps in ((0.0, middle, _UNROLLED), (0.004, short, _UNROLLED), (0.005, middle, 16)):
        yield cost + more, Tiling(tile, (1, 1, 1), chunk, unroll_steps)


def _cost_of_one(extents: Extents, tile: tuple[int, int, int], registers: int) -> float:
    blocks, rows, columns = tile
    sums, pixels, many = prod(tile), rows * columns, prod(tile) > registers // 2
    cost = max(1.0, _SUMS[0] / sums) + 0.006 * max(0, sums - _SUMS[1]) + 0.01 * (blocks > 2) + 0.01 * max(0, rows - 2)
    cost += 0.2 / pixels  # a vector of weights is read for so many
    if extents.kind == DEPTHWISE:  # each sum reads a vector of the image, and spills come early
        return cost + 0.3 * many + 0.1 * (rows > 2)
    if extents.is_plain and blocks > 1 and many:
        return cost + 0.5
    weights_bytes = prod(extents.reduction) * blocks * extents.block_bytes
    return cost + 0.03 * (blocks > 1) * (many + (weights_bytes > _FIRST_CACHE_BYTES))


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
    yield cost, Tiling(tile, alone, chunk, _UNROLLED)
    yield cost + 0.01, Tiling(tile, alone, other, _UNROLLED)
    yield cost + 0.02, Tiling(tile, alone, chunk, 16)
    around = columns // tile[2]
    if 1 < around <= _LONGEST_ROW:
        yield cost + 0.06, Tiling(tile, (1, 1, around), min(chunk, other), _UNROLLED)


def _loads(tile: tuple[int, int, int]) -> float:
    """For each multiplication."""
    blocks, rows, columns = tile
    return (blocks + rows * columns) / prod(tile)


def _cost(extents: Extents, tile: tuple[int, int, int], registers: int, in_flight: int) -> float:
    """Cycles a multiplication, over the fewest possible."""
    accumulators, loads = prod(tile), _loads(tile)
    return max(1.0, loads, in_flight / accumulators) * _spills(extents, tile, registers) + _LOAD * loads


def _spills(extents: Extents, tile: tuple[int, int, int], registers: int) -> float:
    """The expected cost of spills."""
    roomy = prod(tile) <= _ROOMY * registers
    if not roomy and (extents.kind == DEPTHWISE or extents.is_plain):  # all numbers of a short sum are read at once
        return 1.3
    if prod(tile) + tile[0] + 1 > registers - _SPARE:
        return 1.25
    return 1.15 if tile[0] == 1 and not roomy else 1.0


def _spills_unrolled(tile: tuple[int, int, int], around: int, chunk: tuple[int, ...], registers: int) -> float:
    """The expected cost of spills where the loop over `around` tiles is so short that it is unrolled: then the sums of
    all these tiles are accumulators.
    """
    return 1.25 if around * prod(chunk) <= _UNROLLED and around * prod(tile) > registers - _SPARE else 1.0


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
