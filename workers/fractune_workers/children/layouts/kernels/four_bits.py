"""The kernel of a product with weights of two, four or eight bits: each number is unpacked in a register.

One core computes some columns for all rows, a few rows at a time. The sums stay in registers for a block of the depth,
and only the sum of a block is multiplied by the block's scale. A word of the weights has the numbers of one column,
eight of four bits. So vectors of eight numbers follow from one load by shifts. The schedule is computed from the
product and the vector unit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.rewriting.expressions import OPAQUE
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
