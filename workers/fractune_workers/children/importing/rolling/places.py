"""Where the values of an ONNX graph come from, in a first walk over its nodes: they are views and ranges of other
tensors, and of constant matrices. Also the sums by which a cell is recognised however it is written.

`(h - n) * z + n` and `z * h + (1 - z) * n` are one sum. A part is a column range of a tensor, a tensor's product with a
constant matrix, a constant vector, or an activation of another sum. Sums have few terms: where they would grow, a value
stays a part of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from fractune_workers.children.importing.onnx_graph import domain_of, names_read
from fractune_workers.children.recurrent.recurrence import Activation

Place = str | tuple[str, int, int]
"""A tensor by its name, or one index of another tensor: its name, the axis and the index"""
Term = tuple[tuple[int, ...], float]
"""the parts whose product it is, by number, and a factor"""
Sum = tuple[Term, ...]
ZERO: Sum = ()
_MOST_TERMS = 12
_MOST_FACTORS = 2


@dataclass(frozen=True)
class Matrix:
    """A range of a constant matrix, as a product reads it: (inputs, outputs)."""

    weight: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    turned: bool = False
    """whether its rows are the weight's columns"""

    def transposed(self) -> Matrix:
        return Matrix(self.weight, self.columns, self.rows, not self.turned)

    def cut(self, axis: int, low: int, high: int) -> Matrix:
        """A range of its rows (axis 0) or columns (axis 1)."""
        rows, columns = (
            (first + low, first + high) if of == axis else (first, last)
            for of, (first, last) in enumerate((self.rows, self.columns))
        )
        return Matrix(self.weight, rows, columns, self.turned)


@dataclass(frozen=True)
class Part:
    """Columns of a tensor that is not looked into."""

    place: Place
    low: int
    high: int


@dataclass(frozen=True)
class Product:
    place: Place
    matrix: Matrix


@dataclass(frozen=True)
class Vector:
    """Elements of a constant vector."""

    key: str
    low: int
    high: int


@dataclass(frozen=True)
class Activated:
    function: Activation
    argument: Sum


@dataclass(frozen=True)
class Mask:
    """A condition for each row, as 1 or 0: a tensor with one column."""

    place: Place


Factor = Part | Product | Vector | Activated | Mask


class Sums:
    """The parts of sums, each with a number of its own."""

    def __init__(self) -> None:
        self.factors: list[Factor] = []
        self._numbers: dict[Factor, int] = {}
        self._plain: list[bool] = []
        """by factor: whether its columns can be taken: it has no activation in an activation"""

    def of(self, factor: Factor) -> Sum:
        number = self._numbers.setdefault(factor, len(self.factors))
        if number == len(self.factors):
            self.factors.append(factor)
            inner = factor.argument if isinstance(factor, Activated) else ZERO
            self._plain.append(not any(isinstance(each, Activated) for each in self.parts(inner)))
        return (((number,), 1.0),)

    def parts(self, of: Sum) -> list[Factor]:
        return [self.factors[number] for numbers, _ in of for number in numbers]

    def terms(self, of: Sum) -> list[tuple[list[Factor], float]]:
        return [([self.factors[number] for number in numbers], factor) for numbers, factor in of]

    def columns(self, of: Sum, low: int, high: int) -> Sum | None:
        """The sum of these columns; None where they cannot be taken of its parts."""
        total: Sum | None = ZERO
        for numbers, factor in of:
            term: Sum | None = number(factor)
            for each in numbers:
                cut = self._cut(each, low, high)
                term = None if cut is None or term is None else multiplied(term, cut)
            total = None if term is None or total is None else added(total, term)
        return total

    def _cut(self, number: int, low: int, high: int) -> Sum | None:
        factor = self.factors[number]
        if isinstance(factor, Mask):
            return self.of(factor)
        if isinstance(factor, Product):
            return self.of(Product(factor.place, factor.matrix.cut(1, low, high)))
        if isinstance(factor, Activated):
            argument = self.columns(factor.argument, low, high) if self._plain[number] else None
            return None if argument is None else self.of(Activated(factor.function, argument))
        moved = factor.low + low, factor.low + high
        return self.of(Part(factor.place, *moved) if isinstance(factor, Part) else Vector(factor.key, *moved))


def number(value: float) -> Sum:
    return (((), value),) if value else ZERO


def added(one: Sum, other: Sum, factor: float = 1.0) -> Sum | None:
    """`one` + `factor` * `other`; None where it has too many terms."""
    terms = dict(one)
    for parts, each in other:
        terms[parts] = terms.get(parts, 0.0) + factor * each
    return _sum(terms)


def multiplied(one: Sum, other: Sum) -> Sum | None:
    """The product; None where it has too many terms, or terms of too many factors."""
    terms = dict[tuple[int, ...], float]()
    for parts, factor in one:
        for others, each in other:
            both = tuple(sorted(parts + others))
            terms[both] = terms.get(both, 0.0) + factor * each
    return _sum(terms)


def _sum(terms: dict[tuple[int, ...], float]) -> Sum | None:
    kept = {parts: factor for parts, factor in terms.items() if factor}
    small = len(kept) <= _MOST_TERMS and all(len(parts) <= _MOST_FACTORS for parts in kept)
    return tuple(sorted(kept.items())) if small else None


Array = npt.NDArray[Any]
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
ACTIVATIONS: Mapping[str, Mapping[str, float]] = {
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Relu": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 1.0},
}
"""ONNX's operators that a recurrence knows as activations, with the defaults of their attributes"""
ACTIVATION_NAMES = {name.lower(): name for name in ACTIVATIONS}
"""by their names in `children.recurrent`"""
PRODUCTS = ("Gemm", "MatMul")
VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that pass on what they read, perhaps in another shape"""
_PREFIX_BYTES = 256
_MOST_JOINED = 12
"""tensors that are joined to the input of a product, each with its own range of the matrix"""
MATRIX = 2
"""axes"""


@dataclass(frozen=True)
class Span:
    """A tensor that is a range of another one along an axis."""

    source: str
    axis: int
    start: int
    step: int


class Places:
    def __init__(self, graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
        """`nodes`: those of the graph that its results follow from, in order."""
        self.nodes = nodes
        self.reads = [names_read(node) for node in nodes]
        self.makers = {name: at for at, node in enumerate(self.nodes) for name in node.output if name}
        """by name: the number of the node that makes it"""
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.weights |= {name: tensor for node in self.nodes for name, tensor in _constant(node)}
        self.shapes, self.kinds = _types(graph, self.weights)
        self.places: dict[str, Place] = {}
        """by name: the tensor whose elements these are, or the index of another tensor"""
        self.spans: dict[str, Span] = {}
        self._matrices = self._initial_matrices()
        self._joined: dict[str, list[str]] = {}
        """by name: what it joins along its last axis"""
        self._negated: dict[str, str] = {}
        """by name of a condition: the condition that it is the contrary of"""
        self._states = set[Place]()
        self._activated = set[Place]()
        uses = Counter[str]()
        for node in self.nodes:
            uses.update(self._look_at(node))
        self.repeated = any(count > 1 for count in uses.values())
        """whether several products read one matrix, as the steps of every recurrence do"""

    def place(self, name: str) -> Place:
        return self.places.get(name, name)

    def array(self, matrix: Matrix) -> Array:
        numbers = numpy_helper.to_array(self.weights[matrix.weight])
        turned = numbers.T if matrix.turned else numbers
        return turned[slice(*matrix.rows), slice(*matrix.columns)]

    def numbers(self, name: str) -> Array | None:
        """Of a constant."""
        tensor = self.weights.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _initial_matrices(self) -> dict[str, Matrix]:
        alike = dict[Any, str]()
        made = {}
        starts = Counter(map(_start, filter(_is_matrix, self.weights.values())))
        for name, tensor in self.weights.items():
            if _is_matrix(tensor):
                start = _start(tensor)
                key = start if starts[start] == 1 else (start, hashlib.sha256(_bytes(tensor)).digest())
                rows, columns = tensor.dims
                made[name] = Matrix(alike.setdefault(key, name), (0, rows), (0, columns))
        return made

    def _look_at(self, node: onnx.NodeProto) -> Sequence[str]:
        """Learn what places and constant matrices the node's outputs are; the weight that it multiplies with."""
        if domain_of(node.domain) or not node.output or not node.input:
            return []
        kind, data, output = node.op_type, node.input[0], node.output[0]
        if data in self._matrices:
            self._view_matrix(node)
        elif kind in PRODUCTS and node.input[1] in self._matrices:
            self._states.update(map(self.place, self._operands(data)))
            return [self._matrices[node.input[1]].weight]
        elif kind in ACTIVATIONS:
            self._activated.add(self.place(data))
        elif kind == "Not":
            self._negated[output] = data
        elif self._is_view(node):
            self.places[output] = self.place(data)
        elif kind == "Concat" and self._joins_columns(node):
            self._joined[output] = list(node.input)
        else:
            for name, axis, start, step in self._ranges(node):
                self._learn_range(name, data, axis, start, step)
        return []

    def _view_matrix(self, node: onnx.NodeProto) -> None:
        matrix, output = self._matrices[node.input[0]], node.output[0]
        if node.op_type == "Identity":
            self._matrices[output] = matrix
        elif node.op_type == "Transpose" and list(attribute(node, "perm", [1, 0])) == [1, 0]:
            self._matrices[output] = matrix.transposed()
        for name, axis, start, step in self._ranges(node):
            if step == 1:
                self._matrices[name] = matrix.cut(axis, start, start + self.shapes[name][axis])

    def _operands(self, name: str) -> list[str]:
        return self._joined.get(name, [name])

    def _is_view(self, node: onnx.NodeProto) -> bool:
        """Whether the node passes on all rows of what it reads, in their order."""
        before, after = self.shapes.get(node.input[0]), self.shapes.get(node.output[0])
        if not before or not after or before[-1] != after[-1] or math.prod(before) != math.prod(after):
            return False
        if node.op_type == "Transpose":
            order = [axis for axis in attribute(node, "perm", range(len(before))[::-1]) if before[axis] > 1]
            return order == sorted(order)
        return node.op_type in VIEWS or any(before[axis] == 1 for _, axis, *_ in self._ranges(node))

    def _joins_columns(self, node: onnx.NodeProto) -> bool:
        if len(node.input) > _MOST_JOINED:
            return False
        shapes = [self.shapes.get(name) for name in node.input]
        return all(shapes) and attribute(node, "axis", 0) in (-1, len(shapes[0] or ()) - 1)

    def _learn_range(self, name: str, data: str, axis: int, start: int, step: int) -> None:
        if axis == len(self.shapes[data]) - 1:
            return
        own = self.place(data)
        if isinstance(own, str) and self.shapes[own] == self.shapes[data]:
            data = own
        source = self.spans.get(data)
        if source is not None and source.axis == axis:
            data, start, step = source.source, source.start + source.step * start, source.step * step
        after = self.shapes[name]
        if len(after) < len(self.shapes[data]) or after[axis] == 1:
            self.places[name] = data, axis, start
        else:
            self.spans[name] = Span(data, axis, start, step)

    def _ranges(self, node: onnx.NodeProto) -> Sequence[tuple[str, int, int, int]]:
        """By output that is a range of the first input: its name, the axis, the first index and the step."""
        shape = self.shapes.get(node.input[0])
        if not shape or not all(name in self.shapes for name in node.output):
            return []
        axis = int(attribute(node, "axis", 0)) % len(shape) if node.op_type in ("Gather", "Split") else 0
        if node.op_type == "Gather":
            index = self.numbers(node.input[1]) if math.prod(self.shapes.get(node.input[1], [0])) == 1 else None
            return [] if index is None else [(node.output[0], axis, int(index.item()) % shape[axis], 1)]
        if node.op_type == "ReverseSequence":
            return self._reversed(node, shape)
        if node.op_type == "Split":
            ends = itertools.accumulate((self.shapes[name][axis] for name in node.output), initial=0)
            return [(name, axis, start, 1) for name, start in zip(node.output, ends, strict=False)]
        return self._slice(node, shape) if node.op_type == "Slice" else []

    def _reversed(self, node: onnx.NodeProto, shape: Sequence[int]) -> Sequence[tuple[str, int, int, int]]:
        axis, lengths = int(attribute(node, "time_axis", 0)), self.numbers(node.input[1])
        whole = lengths is not None and (lengths == shape[axis]).all()
        return [(node.output[0], axis, shape[axis] - 1, -1)] if whole else []

    def _slice(self, node: onnx.NodeProto, shape: Sequence[int]) -> Sequence[tuple[str, int, int, int]]:
        given = [self.numbers(name) if name else None for name in node.input[1:]]
        if len(given) < 2 or given[0] is None or given[1] is None:
            return []
        starts = [int(each) for each in given[0].reshape(-1)]
        if any(name and numbers is None for name, numbers in zip(node.input[1:], given, strict=True)):
            return []
        axes = given[2].reshape(-1) if len(given) > 2 and given[2] is not None else range(len(starts))
        steps = given[3].reshape(-1) if len(given) > 3 and given[3] is not None else [1] * len(starts)
        cuts = []
        for axis, start, step in zip(map(int, axes), starts, map(int, steps), strict=True):
            size, left = shape[axis], self.shapes[node.output[0]][axis]
            first = min(max(start + size if start < 0 else start, 0), size - 1)
            if (first, step, left) != (0, 1, size):
                cuts.append((node.output[0], axis % len(shape), first, step))
        return cuts if len(cuts) == 1 else []


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)


def _constant(node: onnx.NodeProto) -> list[tuple[str, onnx.TensorProto]]:
    if node.op_type != "Constant" or domain_of(node.domain):
        return []
    return [(node.output[0], each.t) for each in node.attribute if each.HasField("t")]


def _types(
    graph: onnx.GraphProto, weights: Mapping[str, onnx.TensorProto]
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """By name: fixed shapes, and the types of elements."""
    values = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output, *graph.value_info)}
    shapes = {name: [dim.dim_value for dim in kind.shape.dim] for name, kind in values.items() if _is_fixed(kind)}
    shapes |= {name: list(tensor.dims) for name, tensor in weights.items() if all(tensor.dims)}
    kinds = {name: kind.elem_type for name, kind in values.items()}
    return shapes, kinds | {name: tensor.data_type for name, tensor in weights.items()}


def _is_fixed(kind: onnx.TypeProto.Tensor) -> bool:
    return kind.HasField("shape") and all(dim.HasField("dim_value") and dim.dim_value > 0 for dim in kind.shape.dim)


def _is_matrix(tensor: onnx.TensorProto) -> bool:
    return len(tensor.dims) == MATRIX and tensor.data_type in FLOATS


def _bytes(tensor: onnx.TensorProto) -> bytes:
    return tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()


def _start(tensor: onnx.TensorProto) -> Any:
    return tensor.data_type, *tensor.dims, _bytes(tensor)[:_PREFIX_BYTES]
