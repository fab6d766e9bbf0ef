"""The kernel of a product with weights of few bits whose data is rounded to bytes: instructions for products of bytes
multiply them.

Each block of a row of the data becomes whole numbers from -127 to 127 and a step, the largest magnitude over 127
(`accuracy_level` 4 of MatMulNBits). The sums of a block are exact. A word of the weights holds numbers of one
column. The lowest bits of its bytes are the first four, so that a shift and a mask make four bytes of it.
"""

from collections.abc import Callable
from functools import partial
from math import ceil, gcd
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.layouts.kernels.four_bits import Kernel, Product, Tiling, in_parts
from fractune_workers.children.tvm_api.byte_products import BYTES, added_products
from fractune_workers.children.tvm_api.target import VectorUnit

_Array = npt.NDArray[Any]
_FLOAT, _WHOLE, _BYTE = "float32", "int32", "int8"
_LARGEST = 127
_ROUNDS = 12582912.0
"""1.5 * 2**23: added to a small number, its last bits are the whole number nearest to that number"""
_ROUNDS_BITS = 0x4B400000
_MOST_VECTORS, _VECTORS_OF_ROWS, _MOST_ROWS = 4, 2, 4
"""of a tile of one row, and of one of several: each sum needs a register for the block and one for all blocks"""


def fits(product: Product) -> bool:
    """Whether all words are whole, and no block has more bytes than a sum of 32 bits holds."""
    return product.depth % product.per_word == 0 and product.block % product.per_word == 0 and product.depth < 2**16


def tiling_for(product: Product, unit: VectorUnit) -> Tiling:
    rows = ceil(product.rows / ceil(product.rows / _MOST_ROWS))
    needed = ceil(product.columns / unit.lanes)
    most = min(_MOST_VECTORS if rows == 1 else _VECTORS_OF_ROWS, needed)
    dividing = next(each for each in range(most, 0, -1) if needed % each == 0)
    return Tiling(unit.lanes, dividing if 2 * dividing >= most else most, rows)


def packed(product: Product, tiling: Tiling, numbers: _Array) -> _Array:
    """Numbers (columns, bytes), the lowest bits of a byte first, as words (tiles, words, columns of a tile)."""
    bits, parts = product.bits, product.parts
    shifts = np.arange(0, 8, bits).astype(np.uint8)
    apart = (numbers[:, : product.words * BYTES, None] >> shifts & (2**bits - 1)).reshape(product.columns, -1)
    ordered = apart.reshape(product.columns, product.words, parts, BYTES)
    made = np.zeros((tiling.tiles(product.columns) * tiling.width, product.words, BYTES), np.uint8)
    for part in range(parts):
        made[: product.columns] |= ordered[:, :, part] << np.uint8(bits * part)
    words = made.view("<i4").reshape(-1, tiling.width, product.words)
    return np.ascontiguousarray(words.transpose(0, 2, 1), np.int32)


def byte_kernel(product: Product, tiling: Tiling, *, has_offsets: bool) -> tirx.PrimFunc:
    """The kernel; arguments as those of `vector_kernel`, with words `packed` here."""
    return _Kernel(product, tiling, has_offsets=has_offsets).function()


class _Kernel(Kernel):
    def __init__(self, product: Product, tiling: Tiling, *, has_offsets: bool) -> None:
        super().__init__(product, tiling, has_offsets=has_offsets)
        self._bytes: Any = None
        self._by_block = (product.rows, product.blocks)

    def prepare(self) -> None:
        """Round the data: numbers, the steps of blocks, and what the middle of the weights takes from a sum."""
        of = self._of
        self._bytes = builder.alloc_buffer((of.rows, of.depth), _BYTE)
        self._steps = builder.alloc_buffer(self._by_block, _FLOAT)
        self._begins = builder.alloc_buffer(self._by_block, _WHOLE)
        self._totals_of_data: Any = builder.alloc_buffer(self._by_block, _FLOAT) if self._offsets is not None else None
        loop = builder.serial if of.rows == 1 else builder.parallel
        with loop(0, of.rows) as row:
            in_parts(of.depth, of.block, partial(self._round_block, row))

    def _round_block(self, row: Any, begin: Any, depth: int) -> None:
        lanes = gcd(depth, self._tiling.lanes)
        block = begin // self._of.block
        largest, totals = (builder.alloc_buffer((lanes,), dtype, scope="local") for dtype in (_FLOAT, _WHOLE))
        with builder.vectorized(0, lanes) as lane:
            builder.buffer_store(largest, tirx.const(0, _FLOAT), [lane])
            builder.buffer_store(totals, tirx.const(0, _WHOLE), [lane])
        with builder.serial(0, depth // lanes) as part, builder.vectorized(0, lanes) as lane:
            value = tirx.abs(self._data[row, begin + part * lanes + lane])
            builder.buffer_store(largest, tirx.max(largest[lane], value), [lane])
        _halved(largest, tirx.max)
        inverse = tirx.if_then_else(
            largest[0] > tirx.const(0, _FLOAT), tirx.const(_LARGEST, _FLOAT) / largest[0], tirx.const(0, _FLOAT)
        )
        held = builder.alloc_buffer((1,), _FLOAT, scope="local")
        builder.buffer_store(held, inverse, [0])
        with builder.serial(0, depth // lanes) as part, builder.vectorized(0, lanes) as lane:
            place = begin + part * lanes + lane
            moved = self._data[row, place] * held[0] + tirx.const(_ROUNDS, _FLOAT)
            number = tirx.reinterpret(_WHOLE, moved) - tirx.const(_ROUNDS_BITS, _WHOLE)
            builder.buffer_store(totals, totals[lane] + number, [lane])
            builder.buffer_store(self._bytes, number.astype(_BYTE), [row, place])
        _halved(totals, lambda one, other: one + other)
        step = largest[0] * tirx.const(1 / _LARGEST, _FLOAT)
        builder.buffer_store(self._steps, step, [row, block])
        middle = 1 << (self._of.bits - 1)
        builder.buffer_store(self._begins, totals[0] * tirx.const(-middle, _WHOLE), [row, block])
        if self._totals_of_data is not None:
            builder.buffer_store(self._totals_of_data, totals[0].astype(_FLOAT) * step, [row, block])

    def add_block(self, first: Any, totals: Any, begin: Any, depth: int) -> None:
        rows = int(totals.shape[0])
        lanes, vectors, block = self._tiling.lanes, self._tiling.vectors, begin // self._of.block
        sums = builder.alloc_buffer((rows, vectors, lanes), _WHOLE, scope="local")
        self.each(sums, lambda *at: builder.buffer_store(sums, self._begins[first + at[0], block], list(at)))
        in_parts(depth, self._of.per_word, partial(self._add_word, first, sums, begin))

        def add(row: int, vector: int, lane: Any) -> None:
            place = self._tile, block, self.column(vector, lane)
            step = self._steps[first + row, block] * self._scales[place]
            value = totals[row, vector, lane] + sums[row, vector, lane].astype(_FLOAT) * step
            if self._totals_of_data is not None:
                value = value + self._totals_of_data[first + row, block] * self._offsets[place]
            builder.buffer_store(totals, value, [row, vector, lane])

        self.each(totals, add)

    def _add_word(self, first: Any, sums: Any, begin: Any, at: Any, _count: int) -> None:
        """Add the products of the numbers of one word of each column."""
        of, mask = self._of, 2**self._of.bits - 1
        for part in range(of.parts):
            place = begin + at + BYTES * part

            def add(row: int, vector: int, lane: Any, part: int = part, place: Any = place) -> None:
                word = self._words[self._tile, (begin + at) // of.per_word, self.column(vector, lane)]
                data = [first + row, place]
                value = added_products(sums[row, vector, lane], self._bytes, data, word, of.bits * part, mask)
                builder.buffer_store(sums, value, [row, vector, lane])

            self.each(sums, add)


def _halved(numbers: Any, combine: Callable[[Any, Any], Any]) -> None:
    """Combine all lanes into the first."""
    lanes = int(numbers.shape[0])
    while lanes > 1:
        lanes //= 2
        with builder.vectorized(0, lanes) as lane:
            builder.buffer_store(numbers, combine(numbers[lane], numbers[lane + lanes]), [lane])
