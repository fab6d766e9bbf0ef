"""The end of a recurrent step in TIR: sums become gates, gates become the new state of a cell."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.recurrent.recurrence import GRU, LSTM, Recurrence

INPUT, OUTPUT, FORGET, CELL = range(4)
UPDATE, RESET, HIDDEN = range(3)


@dataclass(frozen=True)
class Tile:
    """Units and rows that are computed together, at one step of one direction."""

    direction: Any
    step: Any
    first_unit: Any
    first_row: Any
    rows: int
    width: int


@dataclass(frozen=True)
class Buffers:
    """What all steps read and write. None where the recurrence has no such operand."""

    projected: Any
    outputs: Any
    state: Any
    """(2, D, B, H): of even steps and of odd ones"""
    cells: Any
    peepholes: Any
    bias: Any
    lengths: Any
    mask: Any
    update: Any
    """(D, B, H), of a GRU with two phases: the update gate"""
    reset_state: Any
    """(D, B, H), of a GRU with two phases: the state times the reset gate"""


def each_lane(width: int) -> Iterator[Any]:
    """The lanes of some units that are computed together, by loops over vectors of 2**n lanes. LLVM keeps vectors of
    other lengths in memory instead of registers.
    """
    done = 0
    while done < width:
        length = 1 << ((width - done).bit_length() - 1)
        if length == 1:
            yield tirx.const(done, "int32")
        else:
            with builder.vectorized(0, length) as lane:
                yield done + lane if done else lane
        done += length


class Cells:
    """Emits the code of one row of a tile; `sums` (rows, gates, width) are the gates' sums."""

    def __init__(self, recurrence: Recurrence, buffers: Buffers) -> None:
        self._of, self._buffers = recurrence, buffers
        self._finish = {LSTM: self._lstm, GRU: self._gru}.get(recurrence.cell, self._rnn)

    def finish(self, phase: int, tile: Tile, row: int, sums: Any) -> None:
        """Compute what the phase computes of its sums; the last one stores the new state and the output."""
        self._finish(phase, tile, row, sums)

    def initial(self, tile: Tile, row: int, gate: int, lane: Any) -> Any:
        """What a gate's sum begins with: its projected input, but inside a reset its bias."""
        if self._of.resets_product and gate == HIDDEN:
            return self._buffers.bias[tile.direction, tile.first_unit + lane]
        return self._input(tile, row, gate, lane)

    def _input(self, tile: Tile, row: int, gate: int, lane: Any) -> Any:
        outer = self._of.outer(self._position(tile, row), tile.first_row + row)
        return self._buffers.projected[(*outer, tile.direction, gate, tile.first_unit + lane)]

    def _position(self, tile: Tile, row: int) -> Any:
        """Which step of the inputs and outputs is computed: a backward direction begins with the last one of the row's
        length. Behind the length it is the step itself.
        """
        of, step = self._of, tile.step
        end: Any = of.steps
        if of.has_lengths:
            end = tirx.min(self._buffers.lengths[tile.first_row + row], of.steps)
        if len(set(of.backwards)) == 1:
            position = end - 1 - step if of.backwards[0] else step
        else:
            position = step + tile.direction * (end - 1 - 2 * step)
        return self._within(tile, row, position, step)

    def is_computed(self, tile: Tile, row: int) -> Any:
        """Whether the row has a new state after the step: the step is within its length, and its mask is not 0. None
        for always.
        """
        found = []
        if self._of.has_lengths:
            found.append(tile.step < self._buffers.lengths[tile.first_row + row])
        if self._of.has_mask:
            place = self._of.outer(self._position(tile, row), tile.first_row + row)
            found.append(self._buffers.mask[place] != 0)
        return reduce(tirx.And, found) if found else None

    def _kept(self, tile: Tile, row: int, new: Any, old: Any) -> Any:
        """The new value where the row has one after the step, else the old one."""
        computed = self.is_computed(tile, row)
        return new if computed is None else tirx.Select(computed, new, old)

    def _within(self, tile: Tile, row: int, new: Any, old: Any) -> Any:
        """The new value within the row's length, the old one behind it."""
        if not self._of.has_lengths:
            return new
        return tirx.Select(tile.step < self._buffers.lengths[tile.first_row + row], new, old)

    def _activated(self, number: int, tile: Tile, x: Any, *, clipped: bool = True) -> Any:
        """The activation with this number of the direction."""
        if self._of.clip and clipped:
            bound = tirx.const(self._of.clip, self._of.dtype)
            x = tirx.max(tirx.min(x, bound), -bound)
        first, *others = (own[number] for own in self._of.activations)
        if not others or others[0] == first:
            return first(x)
        return tirx.if_then_else(tile.direction == 0, first(x), others[0](x))

    def _set(self, tile: Tile, row: int, sums: Any, gate: int, value: Callable[[Any], Any]) -> None:
        """Put a value by lane in the place of a sum. Later expressions read it, and do not repeat it."""
        for lane in each_lane(tile.width):
            builder.buffer_store(sums, value(lane), [row, gate, lane])

    def _lstm(self, _phase: int, tile: Tile, row: int, sums: Any) -> None:
        of, cells, peepholes = self._of, self._buffers.cells, self._buffers.peepholes
        one = tirx.const(1.0, of.dtype)
        put = partial(self._set, tile, row, sums)

        def place(lane: Any) -> tuple[Any, ...]:
            return of.ordered(tile.direction, tile.first_row + row, tile.first_unit + lane)

        def gate_of(gate: int, lane: Any) -> Any:
            x = sums[row, gate, lane]
            if of.has_peepholes:
                x = x + peepholes[tile.direction, gate * of.units + tile.first_unit + lane] * cells[place(lane)]
            return self._activated(0, tile, x)

        put(INPUT, partial(gate_of, INPUT))
        put(FORGET, (lambda lane: one - sums[row, INPUT, lane]) if of.couples_forget else partial(gate_of, FORGET))
        put(CELL, lambda lane: self._activated(1, tile, sums[row, CELL, lane]))
        for lane in each_lane(tile.width):
            old = cells[place(lane)]
            new = sums[row, FORGET, lane] * old + sums[row, INPUT, lane] * sums[row, CELL, lane]
            builder.buffer_store(cells, self._kept(tile, row, new, old), list(place(lane)))
        put(OUTPUT, partial(gate_of, OUTPUT))
        for lane in each_lane(tile.width):
            shown = self._activated(2, tile, cells[place(lane)], clipped=False)
            self._store(tile, row, lane, sums[row, OUTPUT, lane] * shown)

    def _gru(self, phase: int, tile: Tile, row: int, sums: Any) -> None:
        put = partial(self._set, tile, row, sums)
        if phase == 0:
            for gate in (UPDATE, RESET):
                put(gate, partial(self._gate, tile, row, sums, gate))
        if self._of.resets_product:
            put(
                HIDDEN,
                lambda lane: self._activated(
                    1, tile, self._input(tile, row, HIDDEN, lane) + sums[row, RESET, lane] * sums[row, HIDDEN, lane]
                ),
            )
            self._mix(tile, row, lambda lane: sums[row, UPDATE, lane], lambda lane: sums[row, HIDDEN, lane])
        elif phase == 0:
            self._keep_gates(tile, row, sums)
        else:
            put(0, lambda lane: self._activated(1, tile, sums[row, 0, lane]))
            where = tile.direction, tile.first_row + row
            update = self._buffers.update
            self._mix(tile, row, lambda lane: update[(*where, tile.first_unit + lane)], lambda lane: sums[row, 0, lane])

    def _gate(self, tile: Tile, row: int, sums: Any, gate: int, lane: Any) -> Any:
        return self._activated(0, tile, sums[row, gate, lane])

    def _keep_gates(self, tile: Tile, row: int, sums: Any) -> None:
        """Keep the update gate and the state times the reset gate for the second phase."""
        for lane in each_lane(tile.width):
            where = [tile.direction, tile.first_row + row, tile.first_unit + lane]
            builder.buffer_store(self._buffers.update, sums[row, UPDATE, lane], where)
            reset = sums[row, RESET, lane] * self._old(tile, row, lane)
            builder.buffer_store(self._buffers.reset_state, reset, where)

    def _mix(self, tile: Tile, row: int, update: Callable[[Any], Any], hidden: Callable[[Any], Any]) -> None:
        """A GRU's new state, between the hidden one and the old one."""
        one = tirx.const(1.0, self._of.dtype)
        for lane in each_lane(tile.width):
            old = self._old(tile, row, lane)
            self._store(tile, row, lane, (one - update(lane)) * hidden(lane) + update(lane) * old)

    def _rnn(self, _phase: int, tile: Tile, row: int, sums: Any) -> None:
        for lane in each_lane(tile.width):
            self._store(tile, row, lane, self._activated(0, tile, sums[row, 0, lane]))

    def _old(self, tile: Tile, row: int, lane: Any) -> Any:
        return self._buffers.state[tile.step % 2, tile.direction, tile.first_row + row, tile.first_unit + lane]

    def _store(self, tile: Tile, row: int, lane: Any, new: Any) -> None:
        """The new state of a unit, and its output, which behind the row's length is 0."""
        of, state = self._of, self._buffers.state
        at_row, unit = tile.first_row + row, tile.first_unit + lane
        place = [(tile.step + 1) % 2, tile.direction, at_row, unit]
        builder.buffer_store(state, self._kept(tile, row, new, self._old(tile, row, lane)), place)
        output = self._within(tile, row, state[tuple(place)], tirx.const(0.0, of.dtype))
        position = self._position(tile, row)
        where = (at_row, position, tile.direction) if of.batch_first else (position, tile.direction, at_row)
        builder.buffer_store(self._buffers.outputs, output, [*where, unit])
