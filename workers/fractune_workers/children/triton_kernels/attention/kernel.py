"""Attention as one kernel in Triton: softmax(Q K^T) V in tiles, without the scores in memory.

Dao et al., FlashAttention, NeurIPS 2022; Dao, FlashAttention-2, 2023. A program has rows of queries, and takes tiles of
keys and values one after the other. It keeps the largest score and the sum of each row, and rescales what it has added
up when a larger score comes.

A generated module (`sources.py`) calls it with five functions of the operator. Three load tiles, one turns sums into
scores (scale and mask), and one stores the output.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803, PLR0913, PLR0917

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attention(
    q,
    k,
    v,
    pointers,
    LOAD_Q: tl.constexpr,
    LOAD_K: tl.constexpr,
    LOAD_V: tl.constexpr,
    SCORE: tl.constexpr,
    FINISH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
    LOWEST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """M queries and N keys for each batch. A key has DEPTH numbers with zeros behind its own; a value has WIDTH, and
    WIDE with those that repeat others.

    Scores and sums are in float32. The weights are multiplied in the type of the values. LOWEST is where the largest
    score begins: it is finite, so that scores of minus infinity give weights of 0 as in the separate operators.
    """
    row_tiles: tl.constexpr = tl.cdiv(M, ROWS)
    batch = tl.program_id(0) // row_tiles
    row = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    wide = tl.arange(0, WIDE)
    # Rows, keys and numbers of a value beyond the end repeat others, and count nothing.
    number = wide if WIDE == WIDTH else wide % WIDTH
    queries = LOAD_Q(q, batch, (row % M)[:, None], depth[None, :])
    largest = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(0, N, COLUMNS):
        key = first + tl.arange(0, COLUMNS)
        # A remainder hides from the compiler that keys lie side by side.
        kept_key = key % N if N % COLUMNS else key
        keys = LOAD_K(k, batch, depth[:, None], kept_key[None, :])
        values = LOAD_V(v, batch, key[:, None], number[None, :])  # zeros beyond the end: 0 times infinity is NaN
        scores = tl.dot(queries, keys, input_precision=PRECISION)
        scores = SCORE(scores, batch, row[:, None], key[None, :], *pointers)
        if N % COLUMNS:
            scores = tl.where(key[None, :] < N, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - larger[:, None])
        kept = tl.exp(largest - larger)
        total = total * kept + tl.sum(weights, 1)
        sums = tl.dot(weights.to(values.dtype), values, sums * kept[:, None], input_precision=PRECISION)
        largest = larger
    FINISH(sums / total[:, None], batch, row[:, None], wide[None, :], *pointers)
