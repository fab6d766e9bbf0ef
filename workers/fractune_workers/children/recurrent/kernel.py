"""The kernel of a recurrence in TIR: loops over directions, steps, blocks of units and rows of the batch.

A block of units keeps its sums in registers while it reads the state and the weights. Directions are independent and
run in parallel: the core of a direction keeps as many of its weights in its cache as fit. A single direction with many
weights computes its blocks in parallel, with a barrier after each step. The schedule is computed from the recurrence
(gates, batch, bytes of weights) and the vector unit (lanes, registers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.recurrent.cells import Buffers, Cells, Tile, vector
from fractune_workers.children.recurrent.quantization import QuantizedState
from fractune_workers.children.recurrent.recurrence import Recurrence, packed_shape
from fractune_workers.children.rewriting.expressions import OPAQUE
from fractune_workers.children.tvm_api.arrays import element_bytes
from fractune_workers.children.tvm_api.target import VectorUnit

RECURRENCE = "fractune.recurrence"
"""attribute of the kernel: the recurrence as JSON"""
_ENOUGH_SUMS = 8
"""Registers with sums that hide the latency of a multiply-add: 4 cycles, 2 of them at once"""
_SPARE_REGISTERS = 4
_FLOAT32_BYTES = 4
_PARALLEL_UNITS_BYTES = 2**23
"""Recurrent weights of a single direction from which on several cores share a step, with a barrier behind it. Fewer are
read faster by one core, which begins each step with the weights in its cache. This was measured up to 4 MiB, on two
busy cores."""


@dataclass(frozen=True)
class Tiling:
    """How a kernel divides its work."""

    units: int = 1
    rows: int = 1
    packed: bool = False
    """whether the weights lie in blocks"""
    parallel_units: bool = False


def tiling_for(recurrence: Recurrence, unit: VectorUnit) -> Tiling:
    """As many sums as the registers hold, at least as many as hide the latency of a multiply-add."""
    most, least = max(map(len, recurrence.phases)), min(map(len, recurrence.phases))
    width = element_bytes(recurrence.dtype)
    lanes = max(1, unit.lanes * _FLOAT32_BYTES // width)
    registers = unit.registers - _SPARE_REGISTERS
    rows = min(recurrence.batch, registers // most)
    vectors = 1
    while least * vectors * rows < _ENOUGH_SUMS and 2 * most * vectors * rows <= registers:
        vectors *= 2
    weights = recurrence.gates * recurrence.units**2 * width
    parallel = recurrence.directions == 1 and weights >= _PARALLEL_UNITS_BYTES
    return Tiling(min(vectors * lanes, recurrence.units), rows, parallel_units=parallel)


def recurrence_kernel(recurrence: Recurrence, tiling: Tiling) -> tirx.PrimFunc:
    """The kernel. Its arguments, then its outputs, with the shapes that `Recurrence` names:

    - the projected inputs; for each phase the recurrent weights (`recurrence.split`, or packed in blocks);
    - the states before the first step, of an LSTM the cells' as well;
    - where the recurrence has them: the scales of whole weights (D, G*H), peepholes (D, 3*H), the bias inside a GRU's
      reset (D, H), lengths (B) int32;
    - the states after every step, after the last one, and of an LSTM the cells' after the last one.
    """
    with IRBuilder() as made, builder.prim_func(is_private=True, s_tir=True):
        builder.func_name("recurrence")
        scheduled = {"tirx.noalias": True, "tirx.is_scheduled": True, **OPAQUE}
        builder.func_attr({**scheduled, RECURRENCE: recurrence.to_json()})
        _Kernel(recurrence, tiling).build()
    return made.get()


class _Kernel:
    def __init__(self, recurrence: Recurrence, tiling: Tiling) -> None:
        self._of, self._tiling = recurrence, tiling

    def build(self) -> None:
        of = self._of
        projected = self._argument("projected", of.projected)
        self._weights = [
            self._argument(f"weights{at}", self._weights_shape(each), of.whole_weights)
            for at, each in enumerate(of.phases)
        ]
        self._first = self._argument("first", of.states)
        self._first_cells = self._argument("first_cells", of.states) if of.has_cell_state else None
        scales = self._argument("scales", (of.directions, of.gates * of.units)) if of.whole_weights else None
        peepholes = self._argument("peepholes", (of.directions, 3 * of.units)) if of.has_peepholes else None
        bias = self._argument("bias", (of.directions, of.units)) if of.resets_product else None
        lengths = self._argument("lengths", (of.batch,), "int32") if of.has_lengths else None
        outputs = self._argument("outputs", of.outputs)
        self._last = self._argument("last", of.states)
        self._cells = self._argument("last_cells", of.states) if of.has_cell_state else None
        rows = (of.directions, of.batch, of.units)
        self._state = builder.alloc_buffer((2, *rows), of.dtype)
        self._quantized = QuantizedState(of, self._state, scales) if of.whole_weights else None
        self._reset_state: Any = None
        update = None
        if len(of.phases) > 1:
            update, self._reset_state = (builder.alloc_buffer(rows, of.dtype) for _ in range(2))
        self._ends = Cells(
            of,
            Buffers(projected, outputs, self._state, self._cells, peepholes, bias, lengths, update, self._reset_state),
        )
        self._loops()

    def _argument(self, name: str, shape: Sequence[int], dtype: str = "") -> Any:
        return builder.arg(name, builder.buffer(shape, dtype or self._of.dtype))

    def _weights_shape(self, gates: Sequence[int]) -> tuple[int, ...]:
        of = self._of
        if self._tiling.packed:
            return packed_shape(of, gates, self._tiling.units)
        return of.directions, of.units, len(gates) * of.units

    def _loops(self) -> None:
        of = self._of
        loop = builder.parallel if of.directions > 1 else builder.serial
        inner = builder.parallel if self._tiling.parallel_units else builder.serial
        with loop(0, of.directions) as direction:
            self._begin(direction)
            with builder.serial(0, of.steps) as step:
                if self._quantized is not None:
                    self._quantized.quantize(direction, step, self._tiling.units)
                for phase in range(len(of.phases)):
                    self._phase(phase, direction, step, inner)
            self._end(direction)

    def _begin(self, direction: Any) -> None:
        def copy(row: Any, unit: Any) -> None:
            place = self._of.ordered(direction, row, unit)
            builder.buffer_store(self._state, self._first[place], [0, direction, row, unit])
            if self._first_cells is not None:
                builder.buffer_store(self._cells, self._first_cells[place], list(place))

        self._each_unit(copy)

    def _end(self, direction: Any) -> None:
        def copy(row: Any, unit: Any) -> None:
            value = self._state[self._of.steps % 2, direction, row, unit]
            builder.buffer_store(self._last, value, list(self._of.ordered(direction, row, unit)))

        self._each_unit(copy)

    def _each_unit(self, body: Callable[[Any, Any], None]) -> None:
        def block(row: Any, first: Any, width: int) -> None:
            with vector(width) as lane:
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
        if self._quantized is None:
            for row in range(tile.rows):
                for at, gate in enumerate(gates):
                    with vector(tile.width) as lane:
                        builder.buffer_store(sums, self._ends.initial(tile, row, gate, lane), [row, at, lane])
            self._add_products(phase, tile, sums, 0, self._of.units)
        else:
            self._quantized.sums(tile, sums, partial(self._add_products, phase, tile), self._ends.initial)
        for row in range(tile.rows):
            self._ends.finish(phase, tile, row, sums)

    def _add_products(self, phase: int, tile: Tile, sums: Any, begin: Any, count: int) -> None:
        """Add the products of `count` units of the state with their weights."""
        gates = self._of.phases[phase]
        with builder.serial(0, count) as at_read:
            read = begin + at_read
            for row in range(tile.rows):
                state = self._read(phase, tile, row, read)
                for at in range(len(gates)):
                    with vector(tile.width) as lane:
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
