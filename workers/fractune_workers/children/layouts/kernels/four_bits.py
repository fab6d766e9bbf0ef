"""Kernels of a product with weights of two, four or eight bits: each number is unpacked in a register.

One core computes some columns for all rows, a few rows at a time. The sums stay in registers for a block of the depth,
and only the sum of a block is multiplied by the block's scale. A word of the weights has the numbers of one column,
eight of four bits. So vectors of eight numbers follow from one load by shifts. The schedule is computed from the
product and the vector unit.

The data may be rounded to bytes, which instructions for products of bytes multiply (`accuracy_level` 4 of MatMulNBits).
Each block of a row becomes whole numbers from -127 to 127 and a step, the largest magnitude over 127. The sums of a
block are exact. The lowest bits of the bytes of a word are the first four numbers, so that a shift and a mask make four
bytes of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, gcd
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.rewriting.expressions import OPAQUE
from fractune_workers.children.tvm_api.byte_products import BYTES, added_products
from fractune_workers.children.tvm_api.target import VectorUnit

_Array = npt.NDArray[Any]
_FLOAT = "float32"
_BITS, _WORD_BITS = 4, 32
_WORD_BYTES = 4
_MIDDLES = {2: np.uint8(0xAA), 4: np.uint8(0x88), 8: np.uint8(0x80)}
"""by the bits of a number: a byte whose numbers are the middle of the range"""
_MOST_ROWS, _MOST_VECTORS = 4, 4
"""of a tile. Three instructions unpack a vector for all rows. More rows at a time were slower, and so were more vectors
where there are several rows."""


@dataclass(frozen=True)
class Product:
    """Data (rows, depth) times weights of few bits (columns, depth), with a scale for each block of the depth."""

    rows: int
    depth: int
    columns: int
    block: int
    bits: int = _BITS

    @property
    def per_word(self) -> int:
        return _WORD_BITS // self.bits

    @property
    def parts(self) -> int:
        """Numbers in a byte."""
        return _WORD_BITS // _WORD_BYTES // self.bits

    @property
    def blocks(self) -> int:
        """Of a column; the last may be shorter."""
        return ceil(self.depth / self.block)

    @property
    def words(self) -> int:
        """Of a column."""
        return ceil(self.depth / self.per_word)

    @property
    def has_whole_words(self) -> bool:
        """Whether each block begins with a word: the kernel needs it."""
        return self.block % self.per_word == 0 or self.blocks == 1


@dataclass(frozen=True)
class Tiling:
    """How a kernel divides its work into tiles of columns and groups of rows."""

    lanes: int
    vectors: int
    """of columns in a tile"""
    rows: int
    """of a group"""

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    def tiles(self, columns: int) -> int:
        return ceil(columns / self.width)


def tiling_for(product: Product, unit: VectorUnit) -> Tiling:
    """Sums take three quarters of the registers at most. Groups of rows are of about equal size."""
    rows = ceil(product.rows / ceil(product.rows / _MOST_ROWS))
    needed = ceil(product.columns / unit.lanes)
    most = min(unit.registers * 3 // 4 // rows, _MOST_VECTORS, needed)
    dividing = next(each for each in range(most, 0, -1) if needed % each == 0)
    return Tiling(unit.lanes, dividing if 2 * dividing >= most else most, rows)


def packed(product: Product, tiling: Tiling, numbers: _Array) -> _Array:
    """Numbers from 0 on (columns, bytes), the lowest bits of a byte first, as the words of the kernel (tiles, words,
    columns of a tile). There they are less the middle, in two's complement.
    """
    size = product.words * _WORD_BYTES
    whole = np.full((tiling.tiles(product.columns) * tiling.width, size), _MIDDLES[product.bits], np.uint8)
    whole[: product.columns, : numbers.shape[1]] = numbers[:, :size]
    words = (whole ^ _MIDDLES[product.bits]).view("<i4").reshape(-1, tiling.width, product.words)
    return np.ascontiguousarray(words.transpose(0, 2, 1), np.int32)


def laid_out(product: Product, tiling: Tiling, values: _Array) -> _Array:
    """Values of each block (columns, blocks) as the kernel reads them (tiles, blocks, columns of a tile)."""
    columns = tiling.tiles(product.columns) * tiling.width
    whole = np.zeros((columns, product.blocks), np.float32)
    whole[: product.columns] = values
    return np.ascontiguousarray(whole.reshape(-1, tiling.width, product.blocks).transpose(0, 2, 1))


def vector_kernel(product: Product, tiling: Tiling, *, has_offsets: bool) -> tirx.PrimFunc:
    """The kernel. Its arguments are the data, `packed` weights, their scales `laid_out`, with `has_offsets` what is
    added to the weights of a block, and the result (rows, columns of all tiles).
    """
    return Kernel(product, tiling, has_offsets=has_offsets).function()


class Kernel:
    def __init__(self, product: Product, tiling: Tiling, *, has_offsets: bool) -> None:
        self._of, self._tiling = product, tiling
        self._has_offsets = has_offsets
        self._tile: Any = None

    def function(self) -> tirx.PrimFunc:
        with IRBuilder() as made, builder.prim_func(is_private=True, s_tir=True):
            builder.func_name(f"matmul_of_{self._of.bits}_bits")
            builder.func_attr({"tirx.noalias": True, **OPAQUE})
            self._take_arguments()
            self._build()
        return made.get()

    def _take_arguments(self) -> None:
        product, tiles, width = self._of, self._tiling.tiles(self._of.columns), self._tiling.width
        of_blocks = (tiles, product.blocks, width)
        self._data = builder.arg("data", builder.buffer((product.rows, product.depth), _FLOAT))
        self._words = builder.arg("words", builder.buffer((tiles, product.words, width), "int32"))
        self._scales = builder.arg("scales", builder.buffer(of_blocks, _FLOAT))
        offsets = builder.arg("offsets", builder.buffer(of_blocks, _FLOAT)) if self._has_offsets else None
        self._offsets: Any = offsets
        self._result = builder.arg("result", builder.buffer((product.rows, tiles * width), _FLOAT))

    def prepare(self) -> None:
        """What all tiles need."""

    def _build(self) -> None:
        with builder.sblock("root"):
            builder.reads([])
            builder.writes([])
            self.prepare()
            with builder.parallel(0, self._tiling.tiles(self._of.columns)) as self._tile:
                in_parts(self._of.rows, self._tiling.rows, self._rows)

    def _rows(self, first: Any, count: int) -> None:
        """Some rows of the result."""
        totals = self._sums(count)
        self._clear(totals)
        in_parts(self._of.depth, self._of.block, partial(self.add_block, first, totals))
        self.each(totals, partial(self._store, first, totals))

    def add_block(self, first: Any, totals: Any, begin: Any, depth: int) -> None:
        """Add the sums of a block, which are scaled as a whole. An offset is part of each weight of the block, so it is
        multiplied by the sum of the data.
        """
        rows = int(totals.shape[0])
        sums = self._sums(rows)
        self._clear(sums)
        of_data = None if self._offsets is None else self._sums(rows, 1)
        if of_data is not None:
            self._clear(of_data)
        in_parts(depth, self._of.per_word, partial(self._add_words, first, sums, of_data, begin))

        def add(row: int, vector: int, lane: Any) -> None:
            place = self._tile, begin // self._of.block, self.column(vector, lane)
            value = totals[row, vector, lane] + sums[row, vector, lane] * self._scales[place]
            if of_data is not None:
                value = value + of_data[row, 0, lane] * self._offsets[place]
            builder.buffer_store(totals, value, [row, vector, lane])

        self.each(totals, add)

    def _add_words(self, first: Any, sums: Any, of_data: Any, begin: Any, at: Any, count: int) -> None:
        """Add the products of the first `count` numbers of each word, which is read once."""
        weights = self._sums(1)
        for number in range(count):
            depth = begin + at + number

            def unpack(row: int, vector: int, lane: Any, number: int = number) -> None:
                value = self._number(begin + at, number, vector, lane)
                builder.buffer_store(weights, value, [row, vector, lane])

            def add(row: int, vector: int, lane: Any, depth: Any = depth) -> None:
                value = sums[row, vector, lane] + self._data[first + row, depth] * weights[0, vector, lane]
                builder.buffer_store(sums, value, [row, vector, lane])

            def add_data(row: int, vector: int, lane: Any, depth: Any = depth) -> None:
                value = of_data[row, vector, lane] + self._data[first + row, depth]
                builder.buffer_store(of_data, value, [row, vector, lane])

            self.each(weights, unpack)
            self.each(sums, add)
            if of_data is not None:
                self.each(of_data, add_data)

    def _number(self, depth: Any, number: int, vector: int, lane: Any) -> Any:
        """A weight less the middle, without its scale; `depth` is that of the first number of its word."""
        bits = self._of.bits
        word = self._words[self._tile, depth // self._of.per_word, self.column(vector, lane)]
        highest = word << (_WORD_BITS - bits * (number + 1))
        return tirx.Cast(_FLOAT, highest >> (_WORD_BITS - bits))

    def column(self, vector: int, lane: Any) -> Any:
        """Of the tile."""
        return vector * self._tiling.lanes + lane

    def _place(self, row: Any, vector: int, lane: Any) -> tuple[Any, Any]:
        """In the result."""
        return row, self._tile * self._tiling.width + self.column(vector, lane)

    def _sums(self, rows: int, vectors: int = 0) -> Any:
        """Registers with a number of each row and column of a tile."""
        shape = (rows, vectors or self._tiling.vectors, self._tiling.lanes)
        return builder.alloc_buffer(shape, _FLOAT, scope="local")

    def each(self, sums: Any, body: Callable[[int, int, Any], None]) -> None:
        """Call `body` with the row and the vector of each register, in a loop over its lanes."""
        rows, vectors, lanes = (int(extent) for extent in sums.shape)
        for row in range(rows):
            for vector in range(vectors):
                with builder.vectorized(0, lanes) as lane:
                    body(row, vector, lane)

    def _clear(self, sums: Any) -> None:
        self.each(sums, lambda *place: builder.buffer_store(sums, tirx.const(0, _FLOAT), list(place)))

    def _store(self, first: Any, sums: Any, row: int, vector: int, lane: Any) -> None:
        builder.buffer_store(self._result, sums[row, vector, lane], list(self._place(first + row, vector, lane)))


def in_parts(extent: int, size: int, body: Callable[[Any, int], None]) -> None:
    """Call `body` with the begin and the size of each part of an extent: in a loop, and once for the rest."""
    whole, left = divmod(extent, size)
    if whole == 1:
        body(0, size)
    elif whole:
        with builder.serial(0, whole) as part:
            body(part * size, size)
    if left:
        body(whole * size, left)


_WHOLE, _BYTE = "int32", "int8"
_LARGEST = 127
_ROUNDS = 12582912.0
"""1.5 * 2**23: added to a small number, its last bits are the whole number nearest to that number"""
_ROUNDS_BITS = 0x4B400000
_MOST_BYTE_VECTORS, _VECTORS_OF_ROWS, _MOST_BYTE_ROWS = 4, 2, 4
"""of a tile of one row, and of one of several: each sum needs a register for the block and one for all blocks"""


def fits_bytes(product: Product) -> bool:
    """Whether all words are whole, and no block has more bytes than a sum of 32 bits holds."""
    return product.depth % product.per_word == 0 and product.block % product.per_word == 0 and product.depth < 2**16


def byte_tiling(product: Product, unit: VectorUnit) -> Tiling:
    rows = ceil(product.rows / ceil(product.rows / _MOST_BYTE_ROWS))
    needed = ceil(product.columns / unit.lanes)
    most = min(_MOST_BYTE_VECTORS if rows == 1 else _VECTORS_OF_ROWS, needed)
    dividing = next(each for each in range(most, 0, -1) if needed % each == 0)
    return Tiling(unit.lanes, dividing if 2 * dividing >= most else most, rows)


def byte_packed(product: Product, tiling: Tiling, numbers: _Array) -> _Array:
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
    """The kernel; arguments as those of `vector_kernel`, with words `byte_packed` here."""
    return _ByteKernel(product, tiling, has_offsets=has_offsets).function()


class _ByteKernel(Kernel):
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
