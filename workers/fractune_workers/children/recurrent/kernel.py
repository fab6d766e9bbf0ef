"""The kernel of a recurrence in TIR: loops over directions, steps, blocks of units and rows of the batch.

A block of units keeps its sums in registers while it reads the state and the weights. Directions are independent and
may run in parallel: the core of a direction keeps as many of its weights in its cache as fit. Or several cores compute
the blocks of a step in parallel, with a barrier behind it. A tiling (`tilings.py`) says which, and how large the blocks
are.

Products of whole numbers are exact: the state of each step is quantized to 8 bits, the weights are already. The
processor's products of bytes are summed in int32. Without them, products are summed in float32, whose sums of whole
numbers are exact up to 2**24. Where sums may exceed that, they are computed in several parts, which are added up in
int32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_core.operators import INT8
from fractune_workers.children.recurrent.cells import Buffers, Cells, Tile, each_lane
from fractune_workers.children.recurrent.packing import DIRECTIONS, GROUP, UNITS, Tiling, weights_shape
from fractune_workers.children.recurrent.recurrence import LARGEST_WEIGHT, Recurrence
from fractune_workers.children.rewriting.expressions import OPAQUE
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


RECURRENCE = "fractune.recurrence"
"""attribute of the kernel: the recurrence as JSON"""
TILING = "fractune.tiling"
"""attribute of the kernel: the name of its tiling"""


def recurrence_kernel(recurrence: Recurrence, tiling: Tiling) -> tirx.PrimFunc:
    """The kernel. Its arguments, then its outputs, with the shapes that `Recurrence` names:

    - the projected inputs; for each phase the recurrent weights (`recurrence.split`, `tilings.pack`);
    - the states before the first step, of an LSTM the cells' as well;
    - where the recurrence has them: the scales of whole weights (D, G*H), peepholes (D, 3*H), the bias inside a GRU's
      reset (D, H), lengths (B) int32;
    - the mask of all steps, where it has one: (T, B) int8, or (B, T) with the batch first;
    - the states after every step, after the last one, and of an LSTM the cells' after the last one.
    """
    with IRBuilder() as made, builder.prim_func(is_private=True, s_tir=True):
        builder.func_name("recurrence")
        scheduled = {"tirx.noalias": True, "tirx.is_scheduled": True, **OPAQUE}
        builder.func_attr({**scheduled, RECURRENCE: recurrence.to_json(), TILING: tiling.name})
        _Kernel(recurrence, tiling).build()
    return made.get()


class _Kernel:
    def __init__(self, recurrence: Recurrence, tiling: Tiling) -> None:
        self._of, self._tiling = recurrence, tiling

    def build(self) -> None:
        of = self._of
        projected = self._argument("projected", of.projected)
        self._weights = [
            self._argument(f"weights{at}", weights_shape(of, each, self._tiling), of.whole_weights)
            for at, each in enumerate(of.phases)
        ]
        self._first = self._argument("first", of.states)
        self._first_cells = self._argument("first_cells", of.states) if of.has_cell_state else None
        scales = self._argument("scales", (of.directions, of.gates * of.units)) if of.whole_weights else None
        peepholes = self._argument("peepholes", (of.directions, 3 * of.units)) if of.has_peepholes else None
        bias = self._argument("bias", (of.directions, of.units)) if of.resets_product else None
        self._lengths = self._argument("lengths", (of.batch,), "int32") if of.has_lengths else None
        mask = self._argument("mask", of.outer(of.steps, of.batch), "int8") if of.has_mask else None
        outputs = self._argument("outputs", of.outputs)
        self._last = self._argument("last", of.states)
        self._cells = self._argument("last_cells", of.states) if of.has_cell_state else None
        rows = (of.directions, of.batch, of.units)
        self._state = builder.alloc_buffer((2, *rows), of.dtype)
        self._quantized = QuantizedState(of, self._tiling, self._state, scales) if of.whole_weights else None
        self._reset_state: Any = None
        update = None
        if len(of.phases) > 1:
            update, self._reset_state = (builder.alloc_buffer(rows, of.dtype) for _ in range(2))
        self._ends = Cells(
            of,
            Buffers(
                projected,
                outputs,
                self._state,
                self._cells,
                peepholes,
                bias,
                self._lengths,
                mask,
                update,
                self._reset_state,
            ),
        )
        self._loops()

    def _argument(self, name: str, shape: Sequence[int], dtype: str = "") -> Any:
        return builder.arg(name, builder.buffer(shape, dtype or self._of.dtype))

    def _loops(self) -> None:
        of = self._of
        loop, inner = (
            builder.parallel if self._tiling.parallel == each else builder.serial for each in (DIRECTIONS, UNITS)
        )
        with loop(0, of.directions) as direction:
            self._begin(direction)
            with builder.serial(0, of.steps) as step:
                if self._quantized is not None:
                    self._quantized.quantize(direction, step)
                for phase in range(len(of.phases)):
                    self._phase(phase, direction, step, inner)
            self._end(direction)

    def _begin(self, direction: Any) -> None:
        def first(states: Any, row: Any, place: Any) -> Any:
            """Zeros for a row without a step, as in ONNX Runtime."""
            if self._lengths is None:
                return states[place]
            return tirx.Select(self._lengths[row] > 0, states[place], tirx.const(0.0, self._of.dtype))

        def copy(row: Any, unit: Any) -> None:
            place = self._of.ordered(direction, row, unit)
            builder.buffer_store(self._state, first(self._first, row, place), [0, direction, row, unit])
            if self._first_cells is not None:
                builder.buffer_store(self._cells, first(self._first_cells, row, place), list(place))

        self._each_unit(copy)

    def _end(self, direction: Any) -> None:
        def copy(row: Any, unit: Any) -> None:
            value = self._state[self._of.steps % 2, direction, row, unit]
            builder.buffer_store(self._last, value, list(self._of.ordered(direction, row, unit)))

        self._each_unit(copy)

    def _each_unit(self, body: Callable[[Any, Any], None]) -> None:
        def block(row: Any, first: Any, width: int) -> None:
            for lane in each_lane(width):
                body(row, first + lane)

        with builder.serial(0, self._of.batch) as row:
            self._each_block(builder.serial, partial(block, row))

    def _each_block(self, loop: Callable[..., Any], body: Callable[[Any, int], None], backwards: Any = 0) -> None:
        """Call `body` with the first unit and the width of each whole block, in a loop, and once for the units left.
        Where `backwards` is 1, the loop goes from the last block to the first.
        """
        size = self._tiling.units
        whole, left = divmod(self._of.units, size)
        if whole:
            with loop(0, whole) as block:
                body((block + backwards * (whole - 1 - 2 * block)) * size, size)
        if left:
            body(whole * size, left)

    def _phase(self, phase: int, direction: Any, step: Any, loop: Callable[..., Any]) -> None:
        rows = self._tiling.rows
        whole, left = divmod(self._of.batch, rows)

        def tiles(first: Any, width: int) -> None:
            if whole:
                with builder.serial(0, whole) as tile:
                    self._tile(phase, Tile(direction, step, first, tile * rows, rows, width))
            if left:
                self._tile(phase, Tile(direction, step, first, whole * rows, left, width))

        # The weights that a step has read last are in the cache still: the next step begins with them. A thread has the
        # same blocks in every step.
        self._each_block(loop, tiles, step % 2 if loop is builder.serial else 0)

    def _tile(self, phase: int, tile: Tile) -> None:
        gates = self._of.phases[phase]
        sums = builder.alloc_buffer((tile.rows, len(gates), tile.width), self._of.dtype, scope="local")
        with self._unless_all_kept(tile):
            self._sum(phase, tile, sums)
        for row in range(tile.rows):
            self._ends.finish(phase, tile, row, sums)

    @contextmanager
    def _unless_all_kept(self, tile: Tile) -> Iterator[None]:
        """Where all its rows keep their states, a tile needs no sums."""
        computed = [self._ends.is_computed(tile, row) for row in range(tile.rows)]
        if any(each is None for each in computed):
            yield
            return
        with builder.If(reduce(tirx.Or, computed)), builder.Then():
            yield

    def _sum(self, phase: int, tile: Tile, sums: Any) -> None:
        gates = self._of.phases[phase]
        if self._quantized is None:
            for row in range(tile.rows):
                for at, gate in enumerate(gates):
                    for lane in each_lane(tile.width):
                        builder.buffer_store(sums, self._ends.initial(tile, row, gate, lane), [row, at, lane])
            self._add_products(phase, tile, sums, 0, self._of.units)
        elif self._tiling.dots:
            block = tile.first_unit // self._tiling.units
            self._quantized.dot_sums(tile, sums, self._weights[phase], block, self._ends.initial)
        else:
            self._quantized.sums(tile, sums, partial(self._add_products, phase, tile), self._ends.initial)

    def _add_products(self, phase: int, tile: Tile, sums: Any, begin: Any, count: int) -> None:
        """Add the products of `count` units of the state with their weights."""
        gates = self._of.phases[phase]
        with builder.serial(0, count) as at_read:
            read = begin + at_read
            for row in range(tile.rows):
                state = self._read(phase, tile, row, read)
                for at in range(len(gates)):
                    for lane in each_lane(tile.width):
                        weight = self._weight(phase, tile, read, at, lane)
                        builder.buffer_store(sums, sums[row, at, lane] + state * weight, [row, at, lane])

    def _read(self, phase: int, tile: Tile, row: int, unit: Any) -> Any:
        if self._quantized is not None:
            return self._quantized.numbers[tile.direction, tile.first_row + row, unit]
        if phase:
            return self._reset_state[tile.direction, tile.first_row + row, unit]
        return self._state[tile.step % 2, tile.direction, tile.first_row + row, unit]

    def _weight(self, phase: int, tile: Tile, read: Any, at: int, lane: Any) -> Any:
        if self._tiling.packed:
            weight = self._weights[phase][tile.direction, tile.first_unit // self._tiling.units, read, at, lane]
        else:
            weight = self._weights[phase][tile.direction, read, at * self._of.units + tile.first_unit + lane]
        return tirx.Cast(self._of.dtype, weight) if self._of.whole_weights else weight
