"""Recurrences step by step in ONNX's simple operators, in the ways in which exporters and people write them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tests.support.onnx_models import onnx_model

Array = npt.NDArray[Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAST_INDEX = 2**31 - 1


@dataclass(frozen=True)
class Way:
    """How an unrolled recurrence is written."""

    cell: str = "LSTM"
    steps: int = 4
    batch: int = 1
    width: int = 5
    units: int = 6
    product: str = "Gemm"
    """`Gemm` (turned weights, as torch), `MatMul` (as keras), `joined` (of input and state together), `apart` (a matrix
    for each gate), `before` (the inputs' product for all steps, before the first)"""
    bias: str = "two"
    """`two`, `one` or `none`"""
    gates: str = "Split"
    """`Split`, `Slice`, or `wide` (the activation of several gates together)"""
    slices: str = "Gather"
    """of the inputs: `Gather`, `Slice`, `Split`, or `given` (an input of the model for each step)"""
    keeps_axis: bool = False
    """whether inputs and states have an axis of one step"""
    batch_first: bool = False
    backwards: str = ""
    """`index` (the last index first) or `Slice` (of turned inputs); empty for forwards"""
    first: str = "zeros"
    """the state before: `zeros`, `constant`, or `given` (an input of the model)"""
    mixed: str = "z*h+(1-z)*n"
    """of a GRU, or `(h-n)*z+n`, `n+z*(h-n)`, `(1-u)*h+u*n`, `h+u*(n-h)`"""
    resets_product: bool = True
    activations: tuple[str, ...] = ()
    """of a gate, of the candidate, and of an LSTM's cell; empty for ONNX's"""
    peepholes: bool = False
    couples_forget: bool = False
    outputs: str = "stack"
    """`stack`, `turned` (stacked, the last one first), `each`, `last`, `memory` (the last one and an LSTM's cell)"""
    layers: int = 1
    both: bool = False
    """two directions"""
    mask: str = ""
    """How rows keep their states where a mask is 0: `Where`, `padding` (the contrary of the mask), `Mul`, `zeros` (as
    `Mul`, and outputs are 0 in these rows); empty for no mask"""


@dataclass
class Written:
    """A model that is being written: `cells` recurrences are in it."""

    way: Way
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    cells: int = 0
    change: Callable[[Written, int, str], str] | None = None
    """by step and state: what the next step reads instead"""

    def __post_init__(self) -> None:
        self._count = itertools.count()
        self._mask = ""

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{next(self._count)}" for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"n{next(self._count)}", **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, numbers: Any) -> str:
        array = np.array(numbers)
        name = f"w{next(self._count)}"
        self.weights[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
        return name

    def random(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) * 0.6)

    def given(self, *shape: int) -> str:
        name = f"x{next(self._count)}"
        self.inputs[name] = self.rng.standard_normal(shape).astype(np.float32)
        return name

    def model(self) -> onnx.ModelProto:
        return onnx_model(self.nodes, self.inputs, self.weights, opset=17, outputs=self.outputs)

    # ---- the recurrence

    def write(self) -> Written:
        way, values = self.way, list[str]()
        if way.slices == "given":
            values = [self.given(*self._outer(), way.width) for _ in range(way.steps)]
        else:
            shape = (way.batch, way.steps) if way.batch_first else (way.steps, way.batch)
            values = [self.given(*shape, way.width)]
        width = way.width
        for layer in range(way.layers):
            directions = ["", "index"] if way.both else [way.backwards]
            made = [self._layer(values, width, direction) for direction in directions]
            width = way.units * len(made)
            last = layer == way.layers - 1
            states = [self.op("Concat", *each, axis=-1) for each in zip(*made, strict=True)] if way.both else made[0]
            if not last:
                self.way = replace(way, slices="given")
                values = states
            else:
                self._results(states)
        return self

    def _layer(self, values: Sequence[str], width: int, backwards: str) -> list[str]:
        """The states after each step, in the order of the inputs."""
        way = self.way
        self.cells += 1
        step = _Cell(self, width)
        steps = self._sliced(values, backwards, step)
        if (backwards and way.slices == "given") or backwards == "index":
            steps = steps[::-1]
        state, memory = self._before(), self._before() if way.cell == "LSTM" else ""
        held, made = state, []
        for at, data in enumerate(steps):
            before = held, memory
            state, memory = step(data, state, memory)
            shown = state
            if way.mask:
                mask = self._mask_of(way.steps - 1 - at if backwards else at)
                shown = self._kept(mask, state, self.constant(np.zeros((*self._outer(), way.units))))
                state = self._kept(mask, state, before[0])
                memory = memory and self._kept(mask, memory, before[1])
            made.append(shown if way.mask == "zeros" else state)
            self.memory, held = memory, state
            if self.change is not None:
                state = self.change(self, at, state)
        return made[::-1] if backwards else made

    def _mask_of(self, at: int) -> str:
        """The mask of one step, a column."""
        if not self._mask:
            self._mask = self.op("Greater", self.given(self.way.steps, *self._outer(), 1), self.constant(0.0))
        return str(self.op("Gather", self._mask, self.constant(at), axis=0))

    def _kept(self, mask: str, new: str, old: str) -> str:
        if self.way.mask == "Where":
            return str(self.op("Where", mask, new, old))
        if self.way.mask == "padding":
            return str(self.op("Where", self.op("Not", mask), old, new))
        one, other = (self.op("Cast", each, to=TensorProto.FLOAT) for each in (mask, self.op("Not", mask)))
        return str(self.op("Add", self.op("Mul", new, one), self.op("Mul", old, other)))

    def _sliced(self, values: Sequence[str], backwards: str, cell: _Cell) -> list[str]:
        way = self.way
        if way.slices == "given":
            return [cell.before(value) for value in values]
        axis, whole = int(way.batch_first), values[0]
        if backwards == "Slice":
            bounds = [self.constant([number]) for number in (-1, -LAST_INDEX, axis, -1)]
            whole = self.op("Slice", whole, *bounds)
        whole = cell.before(whole)
        if way.slices == "Split":
            parts = self.op("Split", whole, outputs=way.steps, axis=axis)
            return [self._without(part, axis) for part in parts]
        if way.slices == "Gather":
            indexes = [[at] if way.keeps_axis else at for at in range(way.steps)]
            return [self.op("Gather", whole, self.constant(index), axis=axis) for index in indexes]
        made = []
        for at in range(way.steps):
            begins, ends = [0, 0, 0], [LAST_INDEX] * 3
            begins[axis], ends[axis] = at, at + 1
            part = self.op("Slice", whole, *map(self.constant, (begins, ends, [0, 1, 2])))
            made.append(self._without(part, axis))
        return made

    def _without(self, value: str, axis: int) -> str:
        return value if self.way.keeps_axis else str(self.op("Squeeze", value, self.constant([axis])))

    def _outer(self) -> list[int]:
        """The axes of an input of a step before the last one."""
        batch = [self.way.batch]
        return batch if not self.way.keeps_axis else [*batch, 1] if self.way.batch_first else [1, *batch]

    def _before(self) -> str:
        shape = *self._outer(), self.way.units
        if self.way.first == "zeros":
            return self.constant(np.zeros(shape))
        return self.given(*shape) if self.way.first == "given" else self.random(*shape)

    def _results(self, states: Sequence[str]) -> None:
        outputs = self.way.outputs
        axis = int(self.way.batch_first)
        if outputs in ("stack", "turned"):
            order = states if outputs == "stack" else states[::-1]
            parts = list(order)
            if not self.way.keeps_axis:
                parts = [self.op("Unsqueeze", state, self.constant([axis])) for state in order]
            self.outputs.append(self.op("Concat", *parts, axis=axis))
        elif outputs == "each":
            self.outputs += [self.op("Neg", state) for state in states]
        else:
            self.outputs.append(self.op("Identity", states[0] if self.way.backwards else states[-1]))
            if outputs == "memory" and self.way.cell == "LSTM":
                self.outputs.append(self.op("Identity", self.memory))


class _Cell:
    """Writes the steps of one cell."""

    def __init__(self, to: Written, width: int) -> None:
        self._to, self._way = to, to.way
        way, gates = to.way, GATES[to.way.cell]
        self._form = "Gemm" if way.product == "Gemm" and not way.keeps_axis else "MatMul"
        wide = gates * way.units
        self._together = way.product == "joined" and (way.cell != "GRU" or not way.resets_product)
        self._x, self._h = to.rng.standard_normal((width, wide)) * 0.4, to.rng.standard_normal((way.units, wide)) * 0.4
        self._bx, self._bh = to.rng.standard_normal((2, wide)) * 0.5
        if way.bias == "none":
            self._bx, self._bh = self._bx * 0, self._bh * 0
        elif way.bias == "one":
            self._bh = self._bh * 0
        self._names: dict[Any, str] = {}
        self._peepholes = [to.random(way.units) for _ in range(3)] if way.peepholes else []

    def before(self, value: str) -> str:
        """The product for all steps, where it is computed before."""
        if self._way.product != "before":
            return value
        wide = self._x.shape[1]
        return self._linear(value, self._x, self._bx, (0, wide), "MatMul")

    def __call__(self, x: str, h: str, c: str) -> tuple[str, str]:
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self._way.cell](x, h, c)

    def _activation(self, at: int) -> str:
        given = self._way.activations
        return given[at] if given else ("Sigmoid" if at == 0 and self._way.cell != "RNN" else "Tanh")

    def _named(self, key: Any, numbers: Array) -> str:
        """One weight for all steps."""
        if key not in self._names:
            self._names[key] = self._to.constant(numbers)
        return self._names[key]

    def _linear(self, value: str, weights: Array, bias: Array, columns: tuple[int, int], form: str) -> str:
        of = "h" if weights is self._h else "x"
        part = slice(*columns)
        has_bias = bool(bias.any())
        vector = self._named((of, "b", columns), bias[part]) if has_bias else ""
        if form == "Gemm":
            matrix = self._named((of, columns, "T"), weights[:, part].T)
            return str(self._to.op("Gemm", value, matrix, *([vector] if has_bias else []), transB=1))
        product = self._to.op("MatMul", value, self._named((of, columns), weights[:, part]))
        return str(self._to.op("Add", product, vector) if has_bias else product)

    def _products(self, x: str, h: str, low: int = 0, high: int = 0) -> list[str]:
        """What goes into the activations of the gates from `low` to `high`."""
        high = high or GATES[self._way.cell]
        units = self._way.units
        if self._way.product == "apart":
            return [self._sum(x, h, (at * units, (at + 1) * units), "MatMul") for at in range(low, high)]
        return self._parts(self._whole(x, h, (low * units, high * units)), high - low)

    def _whole(self, x: str, h: str, columns: tuple[int, int]) -> str:
        if not self._together:
            return self._sum(x, h, columns, self._form)
        weights, bias = np.vstack([self._x, self._h]), self._bx + self._bh
        both = self._to.op("Concat", x, h, axis=-1)
        product = self._to.op("MatMul", both, self._named(("joined", columns), weights[:, slice(*columns)]))
        if not bias.any():
            return str(product)
        return str(self._to.op("Add", product, self._named(("joined bias", columns), bias[slice(*columns)])))

    def _sum(self, x: str, h: str, columns: tuple[int, int], form: str) -> str:
        given = self._of_input(x, columns, form)
        return str(self._to.op("Add", self._linear(h, self._h, self._bh, columns, form), given))

    def _of_input(self, x: str, columns: tuple[int, int], form: str) -> str:
        if self._way.product != "before":
            return self._linear(x, self._x, self._bx, columns, form)
        return x if columns == (0, self._x.shape[1]) else self._cut(x, *columns)

    def _cut(self, value: str, low: int, high: int) -> str:
        return str(self._to.op("Slice", value, *map(self._to.constant, ([low], [high], [-1]))))

    def _parts(self, value: str, count: int) -> list[str]:
        units = self._way.units
        if count == 1:
            return [value]
        if self._way.gates == "Split":
            return list(self._to.op("Split", value, outputs=count, axis=-1))
        return [self._cut(value, at * units, (at + 1) * units) for at in range(count)]

    def _rnn(self, x: str, h: str, c: str) -> tuple[str, str]:
        return self._to.op(self._activation(0), self._products(x, h)[0]), c

    def _lstm(self, x: str, h: str, c: str) -> tuple[str, str]:
        to, way, gate = self._to, self._way, self._activation(0)
        if way.gates == "wide" and way.product != "apart" and not way.peepholes:
            whole = self._whole(x, h, (0, 4 * way.units))
            i, o, f = self._parts(to.op(gate, self._cut(whole, 0, 3 * way.units)), 3)
            g = self._cut(whole, 3 * way.units, 4 * way.units)
        else:
            i, o, f, g = self._products(x, h)
            i, f = (to.op(gate, self._peep(each, c, at)) for at, each in enumerate((i, f)))
        if way.couples_forget:
            f = to.op("Sub", to.constant(1.0), i)
        c = to.op("Add", to.op("Mul", f, c), to.op("Mul", i, to.op(self._activation(1), g)))
        if way.gates != "wide" or way.product == "apart" or way.peepholes:
            o = to.op(gate, self._peep(o, c, 2))
        return to.op("Mul", o, to.op(self._activation(-1), c)), c

    def _peep(self, value: str, c: str, at: int) -> str:
        if not self._peepholes:
            return value
        return str(self._to.op("Add", value, self._to.op("Mul", c, self._peepholes[at])))

    def _gru(self, x: str, h: str, c: str) -> tuple[str, str]:
        to, way, gate = self._to, self._way, self._activation(0)
        if way.resets_product:
            z, r, nx = self._gates_of(self._of_input, x)
            hz, hr, nh = self._gates_of(self._of_state, h)
            z, r = to.op(gate, to.op("Add", z, hz)), to.op(gate, to.op("Add", r, hr))
            n = to.op("Add", nx, to.op("Mul", r, nh))
        else:
            z, r = (to.op(gate, each) for each in self._products(x, h, 0, 2))
            n = self._products(x, to.op("Mul", r, h), 2, 3)[0]
        n = to.op(self._activation(1), n)
        one = to.constant(1.0)
        forms: dict[str, Callable[[], str]] = {
            "z*h+(1-z)*n": lambda: to.op("Add", to.op("Mul", z, h), to.op("Mul", to.op("Sub", one, z), n)),
            "(h-n)*z+n": lambda: to.op("Add", to.op("Mul", to.op("Sub", h, n), z), n),
            "n+z*(h-n)": lambda: to.op("Add", n, to.op("Mul", z, to.op("Sub", h, n))),
            "(1-u)*h+u*n": lambda: to.op("Add", to.op("Mul", to.op("Sub", one, z), h), to.op("Mul", z, n)),
            "h+u*(n-h)": lambda: to.op("Add", h, to.op("Mul", z, to.op("Sub", n, h))),
        }
        return forms[way.mixed](), c

    def _of_state(self, h: str, columns: tuple[int, int], form: str) -> str:
        return self._linear(h, self._h, self._bh, columns, form)

    def _gates_of(self, product: Callable[[str, tuple[int, int], str], str], value: str) -> list[str]:
        units = self._way.units
        if self._way.product == "apart":
            return [product(value, (at * units, (at + 1) * units), "MatMul") for at in range(3)]
        return self._parts(product(value, (0, 3 * units), self._form), 3)


def unrolled(way: Way, seed: int = 0, change: Callable[[Written, int, str], str] | None = None) -> Written:
    """A model with the recurrence, written that way. `change`: by step and state, what the next step reads instead."""
    return Written(way, np.random.default_rng(seed), change=change).write()
