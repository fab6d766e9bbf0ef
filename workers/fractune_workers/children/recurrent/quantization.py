"""Recurrent products of whole numbers in TIR: the state of each step is quantized to 8 bits, the weights are already.

The products are exact. They are summed in float32, whose sums of whole numbers are exact up to 2**24. Where sums may
exceed that, they are computed in several parts, which are added up in int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.recurrent.cells import Tile, vector
from fractune_workers.children.recurrent.recurrence import Recurrence

_STEPS = 255
"""The largest number of 8 bits, and the largest difference to a zero point"""
_LARGEST_WEIGHT = {"int8": 128, "int16": 255}
"""by type; 16 bits hold 8-bit weights less a zero point of 8 bits"""
_EXACT = 2**24


class QuantizedState:
    def __init__(self, recurrence: Recurrence, state: Any, scales: Any) -> None:
        """`state` (2, D, B, H), and `scales` (D, G*H) of the weights."""
        self._of, self._state, self._scales = recurrence, state, scales
        self.numbers = builder.alloc_buffer(
            (recurrence.directions, recurrence.batch, recurrence.units), recurrence.dtype
        )
        """the quantized state, less its zero point: whole numbers as floats"""
        self._scale = builder.alloc_buffer((recurrence.directions,), recurrence.dtype)
        self._part = max(1, _EXACT // (_STEPS * _LARGEST_WEIGHT[recurrence.whole_weights]))

    def quantize(self, direction: Any, step: Any, block: int) -> None:
        """The state before the step, of all rows by one range, which contains 0."""
        of = self._of
        zero, most = tirx.const(0.0, of.dtype), tirx.const(float(_STEPS), of.dtype)
        low, high = self._range(direction, step, block)
        width = (high[0] - low[0]) / most
        builder.buffer_store(self._scale, tirx.Select(high[0] > low[0], width, tirx.const(1.0, of.dtype)), [direction])
        point = builder.alloc_buffer((1,), of.dtype, scope="local")
        offset = tirx.max(tirx.min(zero - low[0] / self._scale[direction], most), zero)
        builder.buffer_store(point, tirx.nearbyint(offset), [0])

        def put(row: Any, unit: Any, _lane: Any) -> None:
            steps = tirx.nearbyint(self._state[step % 2, direction, row, unit] / self._scale[direction]) + point[0]
            number = tirx.max(tirx.min(steps, most), zero) - point[0]
            builder.buffer_store(self.numbers, number, [direction, row, unit])

        self._each_unit(block, put)

    def _range(self, direction: Any, step: Any, block: int) -> tuple[Any, Any]:
        """The smallest and the largest number of the state and 0, in the first places of two buffers."""
        of = self._of
        low, high = (builder.alloc_buffer((block,), of.dtype, scope="local") for _ in range(2))
        with vector(block) as lane:
            for bound in (low, high):
                builder.buffer_store(bound, tirx.const(0.0, of.dtype), [lane])

        def widen(row: Any, unit: Any, lane: Any) -> None:
            number = self._state[step % 2, direction, row, unit]
            builder.buffer_store(low, tirx.min(low[lane], number), [lane])
            builder.buffer_store(high, tirx.max(high[lane], number), [lane])

        self._each_unit(block, widen)
        with builder.serial(0, block) as at:
            builder.buffer_store(low, tirx.min(low[0], low[at]), [0])
            builder.buffer_store(high, tirx.max(high[0], high[at]), [0])
        return low, high

    def _each_unit(self, block: int, body: Callable[[Any, Any, Any], None]) -> None:
        whole, left = divmod(self._of.units, block)
        with builder.serial(0, self._of.batch) as row:
            if whole:
                with builder.serial(0, whole) as at, vector(block) as lane:
                    body(row, at * block + lane, lane)
            if left:
                with vector(left) as lane:
                    body(row, whole * block + lane, lane)

    def sums(
        self, tile: Tile, sums: Any, add: Callable[[Any, Any, int], None], initial: Callable[[Tile, int, int, Any], Any]
    ) -> None:
        """Fill `sums` (rows, gates, width) with what each begins with and the scaled product. `add` adds the products
        of some units of the state to sums.
        """
        of = self._of
        whole, left = divmod(of.units, self._part)
        if whole + bool(left) == 1:
            self._each_sum(tile, lambda place: builder.buffer_store(sums, tirx.const(0.0, of.dtype), place))
            add(sums, 0, of.units)
            self._each_sum(tile, lambda place: self._finish(tile, sums, place, sums[tuple(place)], initial))
            return
        totals = builder.alloc_buffer((tile.rows, of.gates, tile.width), "int32", scope="local")
        self._each_sum(tile, lambda place: builder.buffer_store(totals, tirx.const(0, "int32"), place))

        def part(begin: Any, count: int) -> None:
            self._each_sum(tile, lambda place: builder.buffer_store(sums, tirx.const(0.0, of.dtype), place))
            add(sums, begin, count)
            self._each_sum(
                tile,
                lambda place: builder.buffer_store(
                    totals, totals[tuple(place)] + tirx.Cast("int32", sums[tuple(place)]), place
                ),
            )

        with builder.serial(0, whole) as at:
            part(at * self._part, self._part)
        if left:
            part(whole * self._part, left)
        self._each_sum(
            tile, lambda place: self._finish(tile, sums, place, tirx.Cast(of.dtype, totals[tuple(place)]), initial)
        )

    def _each_sum(self, tile: Tile, body: Callable[[list[Any]], None]) -> None:
        for row in range(tile.rows):
            for gate in range(self._of.gates):
                with vector(tile.width) as lane:
                    body([row, gate, lane])

    def _finish(
        self, tile: Tile, sums: Any, place: list[Any], product: Any, initial: Callable[[Tile, int, int, Any], Any]
    ) -> None:
        row, gate, lane = place
        scale = (
            self._scale[tile.direction] * self._scales[tile.direction, gate * self._of.units + tile.first_unit + lane]
        )
        builder.buffer_store(sums, initial(tile, row, gate, lane) + product * scale, place)
