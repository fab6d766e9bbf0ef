"""The kernel of a recurrence in TIR: loops over directions, steps, blocks of units and rows of the batch.

A block of units keeps its sums in registers while it reads the state and the weights. Directions are independent and
may run in parallel: the core of a direction keeps as many of its weights in its cache as fit. Or several cores compute
the blocks of a step in parallel, with a barrier behind it. A tiling (`tilings.py`) says which, and how large the blocks
are.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.recurrent.cells import Buffers, Cells, Tile, each_lane
from fractune_workers.children.recurrent.packing import DIRECTIONS, UNITS, Tiling, weights_shape
from fractune_workers.children.recurrent.quantization import QuantizedState
from fractune_workers.children.recurrent.recurrence import Recurrence
from fractune_workers.children.rewriting.expressions import OPAQUE

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
