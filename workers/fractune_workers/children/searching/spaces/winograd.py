"""The design space of Winograd's convolutions (Lavin and Gray, CVPR 2016), and the first candidates in it.

MetaSchedule's rules cannot treat the stages together, so this space is made by hand. A chunk of output blocks and rows
of tiles is finished at once: products, their sums, and the operators fused after them. So the products stay in the
second cache. The image's sums are made before for the whole image, or for the chunk's rows.
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from fractune_core.tir.canonical import GEMM, IMAGE, IMAGE_COLUMNS, OUTPUT, OUTPUT_COLUMNS, PADDED
from fractune_workers.children.searching.spaces.register_tiles import MOST_BLOCKS, MOST_PIXELS, Extents, tilings
from fractune_workers.children.searching.spaces.sketches import block_named, by_hand, extents_of, inline_epilogue

_MOST_UNROLLED = 64
"""multiplications"""
_FLOAT_BYTES = 4
_MANY_WEIGHT_BYTES = 1 << 20
"""of a kernel's weights: half of a second cache"""
BEFORE, BY_ROWS = 0, 1
"""sketches: where the image's sums are made"""
_CHUNKS = [(BY_ROWS, True, False), (BEFORE, False, False), (BY_ROWS, False, False), (BEFORE, False, True)]
"""The likeliest first: the sketch, whether a chunk has all output blocks, and whether it has all rows of tiles."""
_CHUNKS_OF_MANY_WEIGHTS = [(BEFORE, False, True), (BY_ROWS, True, False), (BEFORE, False, False)]
"""where all rows share each weight that is read"""
_MOST_SUMS_BYTES = 1 << 23
"""of an image, beyond which they would go to memory and back between the stages"""


def is_winograd(mod: Any) -> bool:
    return _extents_of(mod) is not None


def space(usual: Any) -> Any:
    """A space generator with the postprocs and mutators of the `usual` one."""
    return by_hand(_sketches, usual)


def first_tiles(mod: Any, registers: int) -> Iterator[tuple[int, list[list[int]]]]:
    """The likeliest first: which sketch, and its tiles of output blocks, rows and columns of tiles."""
    found = _extents_of(mod)
    if found is None:
        return
    spatial, reduction = found
    taps, _, _, blocks, rows, columns, lanes = spatial[-7:]
    extents = Extents(blocks, rows, columns, reduction, lanes * _FLOAT_BYTES)
    # A column of tiles is equivalent to a row of the same length.
    fitting = (tiling.registers for tiling in tilings(extents, registers))
    accumulators = list(dict.fromkeys(tile for tile in fitting if tile[1] == 1 or tile[2] == columns))
    of_a_channel = taps * taps * prod(reduction) * _FLOAT_BYTES
    many_weights = blocks * lanes * of_a_channel > _MANY_WEIGHT_BYTES
    chunks = _CHUNKS_OF_MANY_WEIGHTS if many_weights and rows * columns * of_a_channel <= _MOST_SUMS_BYTES else _CHUNKS
    ranks = sorted(product(range(len(accumulators)), range(len(chunks))), key=sum)
    for tile, chunk in ranks:
        sketch, all_blocks, all_rows = chunks[chunk]
        inner_blocks, inner_rows, inner_columns = accumulators[tile]
        tiles = [_tile(blocks, inner_blocks, whole=all_blocks), _tile(rows, inner_rows, whole=all_rows)]
        yield sketch, [*tiles, [columns // inner_columns, inner_columns]]


def _tile(extent: int, inner: int, *, whole: bool) -> list[int]:
    return [1, extent // inner, inner] if whole else [extent // inner, 1, inner]


def _extents_of(mod: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The extents of the products' spatial loops and of their reduced loops; None for another operator. The last seven
    spatial loops are two of taps, the batch, and four of the output.
    """
    block = block_named(mod, GEMM)
    return None if block is None else extents_of(block)


def _sketches(sch: Any) -> list[Any]:
    made = [sch, sch.copy()]
    for each, by_rows in zip(made, (False, True), strict=True):
        _schedule(each, by_rows=by_rows)
    return made


def _schedule(sch: Any, *, by_rows: bool) -> None:
    """The steps are: (1) Element-wise operators become part of the output. (2) Chunks of the output. (3) The products
    of a chunk in tiles of accumulators. (4) The image's sums, row by row of tiles.
    """
    gemm, output = (sch.get_sblock(name, "main") for name in (GEMM, OUTPUT))
    inline_epilogue(sch, output)
    *_, blocks, rows, columns, _, _, _ = sch.get_loops(gemm)
    block_tile = sch.sample_perfect_tile(blocks, 3, MOST_BLOCKS)
    row_tile = sch.sample_perfect_tile(rows, 3, MOST_PIXELS)
    column_tile = sch.sample_perfect_tile(columns, 2, MOST_PIXELS)
    chunk = _chunk_output(sch, output, block_tile, row_tile)
    _tile_products(sch, gemm, chunk[-1], (block_tile[1:], row_tile[1:], column_tile))
    image = sch.get_sblock(IMAGE, "main")
    if by_rows:
        *outer, rows, _ = chunk
        sch.compute_at(image, rows, preserve_unit_loops=True)
        _sum_image(sch, image)
        sch.parallel(sch.fuse(*outer, rows))
    else:
        sch.parallel(sch.fuse(*_sum_image(sch, image)))
        sch.parallel(sch.fuse(*chunk))


def _chunk_output(sch: Any, output: Any, block_tile: list[Any], row_tile: list[Any]) -> list[Any]:
    """The loops over chunks: slots if there are any, the batch, rows of tiles, output blocks."""
    *outer, blocks, y, x, lane = sch.get_loops(output)
    columns = sch.get_sblock(OUTPUT_COLUMNS, "main")
    size = _tile_size(sch, columns)
    block_chunk, *block_inside = sch.split(blocks, block_tile)
    row_chunk, *row_inside, y = sch.split(y, [None, *row_tile[1:], size])
    tile, x = sch.split(x, [None, size])
    sch.reorder(*outer, row_chunk, block_chunk, *block_inside, *row_inside, tile, y, x, lane)
    sch.compute_at(columns, tile, preserve_unit_loops=True)
    *_, taps, _, _, rows, _, vector = sch.get_loops(columns)
    for loop in (y, x, taps, rows):
        sch.unroll(loop)
    for loop in (lane, vector):
        sch.vectorize(loop)
    return [*outer, row_chunk, block_chunk]


def _tile_size(sch: Any, columns: Any) -> int:
    """Rows of an output tile."""
    *_, taps, _, _, _, _, _ = (int(var.dom.extent) for var in sch.get(columns).iter_vars)
    return taps - 2


def _tile_products(sch: Any, gemm: Any, chunk: Any, tiles: tuple[list[Any], ...]) -> None:
    """Inside the loop `chunk`, with a tile of accumulators that is written back once."""
    done = sch.cache_write(gemm, 0, "global")
    sch.compute_at(done, chunk, preserve_unit_loops=True)
    *_, v, u, batch, blocks, rows, columns, lane = sch.get_loops(done)
    around, inside = [], []
    for loop, tile in zip((blocks, rows, columns), tiles, strict=True):
        outer, inner = sch.split(loop, tile)
        around.append(outer)
        inside.append(inner)
    inside = [*inside[1:], inside[0]]  # one number at a time is held for all blocks, as in the direct kernel
    sch.reorder(v, u, batch, *around, *inside, lane)
    sch.compute_at(gemm, around[-1], preserve_unit_loops=True)
    *_, blocks, rows, columns, vector, co, ci = sch.get_loops(gemm)
    sch.reorder(co, ci, rows, columns, blocks, vector)
    for loop in (lane, vector):
        sch.vectorize(loop)
    # Not at any price: drawn tiles may be of hundreds of accumulators, and LLVM would take its time.
    sch.annotate(v, "pragma_auto_unroll_max_step", _MOST_UNROLLED)
    sch.annotate(v, "pragma_unroll_explicit", 1)


def _sum_image(sch: Any, image: Any) -> list[Any]:
    """Sum one row of tiles at a time; return the loops over rows: the outer ones, the batch, blocks of
    channels, rows.
    """
    *outer, v, u, batch, blocks, rows, columns, lane = sch.get_loops(image)
    sch.reorder(batch, blocks, rows, v, columns, u, lane)
    over_columns, padded = (sch.get_sblock(name, "main") for name in (IMAGE_COLUMNS, PADDED))
    for block in (over_columns, padded):
        sch.compute_at(block, rows, preserve_unit_loops=True)
    *_, taps, _, _, _, x, vector = sch.get_loops(over_columns)
    sch.reorder(x, taps, vector)
    for loop in (u, taps):
        sch.unroll(loop)
    for loop in (lane, vector, sch.get_loops(padded)[-1]):
        sch.vectorize(loop)
    return [*outer, batch, blocks, rows]
