"""Kernels in Triton: sums of products in tiles, on tensor cores where the GPU has them for the type.

A generated module (`sources.py`) calls them with three functions of the operator: one that loads a tile of each factor,
and one that finishes a tile of sums. All extents are constants of the generated kernel.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803, PLR0913, PLR0917

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    a,
    b,
    pointers,
    LOAD_A: tl.constexpr,
    LOAD_B: tl.constexpr,
    FINISH: tl.constexpr,
    BATCH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    PROGRAMS: tl.constexpr,
    GROUP: tl.constexpr,
    TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BOX_A: tl.constexpr,
    BOX_B: tl.constexpr,
):
    """Sums of M x N over K for each batch. PROGRAMS programs compute one tile after the other.

    SPLIT parts of K are summed up apart: then FINISH stores a part's sums, for `gather`. A factor is a pointer, or the
    tensor map of a BOX: such a tile is named by its first element.
    """
    row_tiles: tl.constexpr = tl.cdiv(M, ROWS)
    column_tiles: tl.constexpr = tl.cdiv(N, COLUMNS)
    steps: tl.constexpr = tl.cdiv(K, DEPTH)
    steps_of_part: tl.constexpr = tl.cdiv(steps, SPLIT)
    for tile in range(tl.program_id(0), row_tiles * column_tiles * BATCH * SPLIT, PROGRAMS):
        plane = tile // (row_tiles * column_tiles)
        part, batch = plane // BATCH, plane % BATCH
        # Neighbouring programs share tiles of both factors, which so come from the second cache.
        within = tile % (row_tiles * column_tiles)
        first = within // (GROUP * column_tiles) * GROUP
        height = tl.minimum(row_tiles - first, GROUP)
        first_row = (first + within % (GROUP * column_tiles) % height) * ROWS
        row = first_row + tl.arange(0, ROWS)
        first_column = within % (GROUP * column_tiles) // height * COLUMNS
        column = first_column + tl.arange(0, COLUMNS)
        # Rows and columns beyond the end repeat others, and are not stored.
        a_row = first_row if BOX_A else (row % M)[:, None]
        b_column = first_column if BOX_B else (column % N)[None, :]
        sums = tl.zeros((ROWS, COLUMNS), TYPE)
        for step in range(part * steps_of_part, tl.minimum((part + 1) * steps_of_part, steps)):
            depth = step * DEPTH + tl.arange(0, DEPTH)
            left = LOAD_A(a, batch, a_row, step * DEPTH if BOX_A else depth[None, :])
            right = LOAD_B(b, batch, step * DEPTH if BOX_B else depth[:, None], b_column)
            sums = tl.dot(left, right, sums, input_precision=PRECISION, out_dtype=TYPE)
        FINISH(sums, plane, row[:, None], column[None, :], *pointers)


@triton.jit
def gather(
    partials,
    pointers,
    FINISH: tl.constexpr,
    BATCH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
    TYPE: tl.constexpr,
):
    """The second kernel of a split product: adds up the parts in their order, and finishes the sums."""
    column_tiles: tl.constexpr = tl.cdiv(N, COLUMNS)
    tiles: tl.constexpr = tl.cdiv(M, ROWS) * column_tiles
    batch, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row = (tile // column_tiles * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tile % column_tiles * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    here = (row < M) & (column < N)
    sums = tl.zeros((ROWS, COLUMNS), TYPE)
    for part in range(SPLIT):
        sums += tl.load(partials + ((part * BATCH + batch) * M + row) * N + column, mask=here, other=0)
    FINISH(sums, batch, row, column, *pointers)
