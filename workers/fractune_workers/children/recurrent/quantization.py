"""Recurrent products of whole numbers in TIR: the state of each step is quantized to 8 bits, the weights are already.

The products are exact. The processor's products of bytes are summed in int32. Without them, products are summed in
float32, whose sums of whole numbers are exact up to 2**24. Where sums may exceed that, they are computed in several
parts, which are added up in int32.
"""

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from fractune_core.operators import INT8
from fractune_workers.children.recurrent.cells import Tile, each_lane
from fractune_workers.children.recurrent.packing import GROUP, Tiling
from fractune_workers.children.recurrent.recurrence import LARGEST_WEIGHT, Recurrence
from fractune_workers.children.tvm_api.dot_intrinsics import DOT_PRODUCTS

_STEPS = 255
"""The largest number of 8 bits, and the largest difference to a zero point"""
_EXACT = 2**24


class QuantizedState:
    def __init__(self, recurrence: Recurrence, tiling: Tiling, state: Any, scales: Any) -> None:
        """`state` (2, D, B, H), and `scales` (D, G*H) of the weights."""
        self._of, self._tiling, self._state, self._scales = recurrence, tiling, state, scales
        # For products of bytes, numbers behind the last unit meet weights of 0.
        units = recurrence.units + (-recurrence.units % GROUP if tiling.dots else 0)
        shape = recurrence.directions, recurrence.batch, units
        self.numbers = builder.alloc_buffer(shape, "uint8" if tiling.dots else recurrence.dtype)
        """the quantized state: bytes for products of bytes, otherwise whole numbers as floats, less the zero point"""
        self._scale = builder.alloc_buffer((recurrence.directions,), recurrence.dtype)
        self._zero_point = builder.alloc_buffer((recurrence.directions,), "int32")
        self._part = max(1, _EXACT // (_STEPS * LARGEST_WEIGHT[recurrence.whole_weights]))

    def quantize(self, direction: Any, step: Any) -> None:
        """The state before the step, of all rows by one range, which contains 0."""
        of, block = self._of, self._tiling.units
        zero, most = tirx.const(0.0, of.dtype), tirx.const(float(_STEPS), of.dtype)
        low, high = self._range(direction, step, block)
        width = (high[0] - low[0]) / most
        builder.buffer_store(self._scale, tirx.Select(high[0] > low[0], width, tirx.const(1.0, of.dtype)), [direction])
        point = builder.alloc_buffer((1,), of.dtype, scope="local")
        offset = tirx.max(tirx.min(zero - low[0] / self._scale[direction], most), zero)
        builder.buffer_store(point, tirx.nearbyint(offset), [0])
        builder.buffer_store(self._zero_point, tirx.Cast("int32", point[0]), [direction])

        def put(row: Any, unit: Any, _lane: Any) -> None:
            steps = tirx.nearbyint(self._state[step % 2, direction, row, unit] / self._scale[direction]) + point[0]
            number = tirx.max(tirx.min(steps, most), zero)
            # By int32: AVX2 has no conversion from float32 to a narrower type.
            number = tirx.Cast("uint8", tirx.Cast("int32", number)) if self._tiling.dots else number - point[0]
            builder.buffer_store(self.numbers, number, [direction, row, unit])

        self._each_unit(block, put)

    def _range(self, direction: Any, step: Any, block: int) -> tuple[Any, Any]:
        """The smallest and the largest number of the state and 0, in the first places of two buffers."""
        of = self._of
        low, high = (builder.alloc_buffer((block,), of.dtype, scope="local") for _ in range(2))
        for lane in each_lane(block):
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
                with builder.serial(0, whole) as at:
                    for lane in each_lane(block):
                        body(row, at * block + lane, lane)
            if left:
                for lane in each_lane(left):
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

    def dot_sums(
        self, tile: Tile, sums: Any, weights: Any, block: Any, initial: Callable[[Tile, int, int, Any], Any]
    ) -> None:
        """As `sums`, by the processor's products of bytes with the weights of a block, in int32."""
        of, lanes = self._of, self._tiling.dots
        vectors = -(-tile.width // lanes)
        groups = -(-of.units // GROUP)
        totals = builder.alloc_buffer((tile.rows, of.gates, vectors * lanes), "int32", scope="local")
        instruction = next(dot.llvm for dot in DOT_PRODUCTS[INT8] if dot.lanes == lanes)
        sums_type, bytes_type = f"int32x{lanes}", f"x{lanes * GROUP}"

        def each(group: Any, body: Callable[[Any, Any, int], Any]) -> None:
            """Set each vector of totals to what `body` makes of it, the weights of the group and the row."""
            for row in range(tile.rows):
                for gate in range(of.gates):
                    for at in range(vectors):
                        place = [row, gate, tirx.Ramp(at * lanes, 1, lanes)]
                        first = at * lanes * GROUP
                        weight = weights.vload([tile.direction, block, group, gate, first], f"int8{bytes_type}")
                        builder.buffer_store(totals, body(totals[tuple(place)], weight, row), place)

        def begin(_total: Any, weight: Any, _row: int) -> Any:
            """The state's zero point times the sum of all weights, which lie behind them."""
            point = tirx.Broadcast(-self._zero_point[tile.direction], lanes)
            return tirx.reinterpret(sums_type, weight) * point

        each(groups, begin)
        with builder.serial(0, groups) as group:

            def add(total: Any, weight: Any, row: int) -> Any:
                number = self.numbers.vload([tile.direction, tile.first_row + row, group * GROUP], f"uint8x{GROUP}")
                repeated = tirx.Broadcast(tirx.reinterpret("int32", number), lanes)
                as_bytes = tirx.reinterpret(f"uint8{bytes_type}", repeated)
                return tirx.call_llvm_pure_intrin(sums_type, instruction, total, as_bytes, weight)

            each(group, add)
        self._each_sum(
            tile, lambda place: self._finish(tile, sums, place, tirx.Cast(of.dtype, totals[tuple(place)]), initial)
        )

    def _each_sum(self, tile: Tile, body: Callable[[list[Any]], None]) -> None:
        for row in range(tile.rows):
            for gate in range(self._of.gates):
                for lane in each_lane(tile.width):
                    body([row, gate, lane])

    def _finish(
        self, tile: Tile, sums: Any, place: list[Any], product: Any, initial: Callable[[Tile, int, int, Any], Any]
    ) -> None:
        row, gate, lane = place
        scale = (
            self._scale[tile.direction] * self._scales[tile.direction, gate * self._of.units + tile.first_unit + lane]
        )
        builder.buffer_store(sums, initial(tile, row, gate, lane) + product * scale, place)
