"""The values of an ONNX graph as sums (`sums.py`), in one walk over its nodes.

The states of a recurrence stay parts of their own: what a product with a constant matrix reads, and what an activation
reads beside another node. So the sum of a step's result does not reach into the step before it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from fractune_workers.children.importing.onnx_graph import domain_of, names_read
from fractune_workers.children.importing.rolling.sums import (
    ZERO,
    Activated,
    Factor,
    Mask,
    Matrix,
    Part,
    Place,
    Product,
    Sum,
    Sums,
    Vector,
    added,
    multiplied,
    number,
)
from fractune_workers.children.recurrent.activations import Activation

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
_PRODUCTS = ("Gemm", "MatMul")
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that pass on what they read, perhaps in another shape"""
_CHOOSING = ("Add", "Sum", "Where")
_ELEMENTWISE = ("Add", "Mul", "Neg", "Sub", "Sum")
SHARED = frozenset(
    [*ACTIVATIONS, *_PRODUCTS, *_VIEWS, *_ELEMENTWISE, "Cast", "Gather", "Not", "Slice", "Split", "Transpose", "Where"]
)
"""Operators that are computed once where several nodes have the same operands"""
_PREFIX_BYTES = 256
_LONGEST_VECTOR = 65_536
_MOST_JOINED = 12
"""tensors that are joined to the input of a product, each with its own range of the matrix"""
_MATRIX = 2


Condition = tuple[Place, bool]
"""A tensor of conditions, and whether they are negated"""


@dataclass(frozen=True)
class Choice:
    """A tensor that has the rows of one tensor where a condition holds, and those of another tensor elsewhere."""

    mask: Place
    holds: Place | None
    """None for zeros"""
    fails: Place | None

    @property
    def sides(self) -> Sequence[tuple[Condition, Place | None, Place | None]]:
        """The condition, the tensor where it holds, and the other one; then the same with the negated condition."""
        return ((self.mask, False), self.holds, self.fails), ((self.mask, True), self.fails, self.holds)


@dataclass(frozen=True)
class Span:
    """A tensor that is a range of another one along an axis."""

    source: str
    axis: int
    start: int
    step: int


class Values:
    def __init__(self, graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
        """`nodes`: those of the graph that its results follow from, in order."""
        self.nodes = nodes
        self.reads = [names_read(node) for node in nodes]
        self.makers = {name: at for at, node in enumerate(self.nodes) for name in node.output if name}
        """by name: the number of the node that makes it"""
        self.sums = Sums()
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.weights |= {name: tensor for node in self.nodes for name, tensor in _constant(node)}
        self.shapes, self.kinds = _types(graph, self.weights)
        self.places: dict[str, Place] = {}
        """by name: the tensor whose elements these are, or the index of another tensor"""
        self.spans: dict[str, Span] = {}
        self.memories: dict[Sum, Place] = {}
        """by an activation: where it was read from"""
        self.choices: dict[Place, Choice] = {}
        self.vectors: dict[str, Array] = {}
        self._known: dict[str, Sum] = {}
        self._constants: dict[str, Sum | None] = {}
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

    def evaluate(self) -> None:
        """Find the sums of all values."""
        for node in self.nodes:
            if node.output and self.kinds.get(node.output[0]) in FLOATS:
                self._evaluate(node)

    def place(self, name: str) -> Place:
        return self.places.get(name, name)

    def sum_of(self, name: str) -> Sum | None:
        """What a value is; None where nothing is known of it."""
        return self._known.get(name)

    def array(self, matrix: Matrix) -> Array:
        numbers = numpy_helper.to_array(self.weights[matrix.weight])
        turned = numbers.T if matrix.turned else numbers
        return turned[slice(*matrix.rows), slice(*matrix.columns)]

    def numbers(self, name: str) -> Array | None:
        """Of a constant."""
        tensor = self.weights.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    # ---- constant matrices

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

    # ---- the first walk: places, and what stays a part of its own

    def _look_at(self, node: onnx.NodeProto) -> Sequence[str]:
        """Learn what places and constant matrices the node's outputs are; the weight that it multiplies with."""
        if domain_of(node.domain) or not node.output or not node.input:
            return []
        kind, data, output = node.op_type, node.input[0], node.output[0]
        if data in self._matrices:
            self._view_matrix(node)
        elif kind in _PRODUCTS and node.input[1] in self._matrices:
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
        elif node.op_type == "Transpose" and list(_attribute(node, "perm", [1, 0])) == [1, 0]:
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
            order = [axis for axis in _attribute(node, "perm", range(len(before))[::-1]) if before[axis] > 1]
            return order == sorted(order)
        return node.op_type in _VIEWS or any(before[axis] == 1 for _, axis, *_ in self._ranges(node))

    def _joins_columns(self, node: onnx.NodeProto) -> bool:
        if len(node.input) > _MOST_JOINED:
            return False
        shapes = [self.shapes.get(name) for name in node.input]
        return all(shapes) and _attribute(node, "axis", 0) in (-1, len(shapes[0] or ()) - 1)

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
        axis = int(_attribute(node, "axis", 0)) % len(shape) if node.op_type in ("Gather", "Split") else 0
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
        axis, lengths = int(_attribute(node, "time_axis", 0)), self.numbers(node.input[1])
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

    # ---- the second walk: sums

    def _evaluate(self, node: onnx.NodeProto) -> None:
        kind = "" if domain_of(node.domain) else node.op_type
        output = node.output[0]
        found: Sum | None = None
        if output in self.places and self.places[output] == self.place(node.input[0]):
            found = self._known.get(node.input[0])
        elif kind in _PRODUCTS:
            found = self._product(node)
        elif kind in ACTIVATIONS:
            found = self._activation(node)
        elif kind in _ELEMENTWISE:
            found = self._elementwise(node)
        elif kind == "Cast":
            found = self._condition(node.input[0])
        elif kind == "Where":
            found = self._where(node)
        elif kind in ("Gather", "Slice", "Split"):
            for name, axis, start, step in self._ranges(node):
                self._learn(name, self._range(node.input[0], name, axis, start, step))
        if kind in _CHOOSING and found is not None and (choice := self._choice(found)) is not None:
            self.choices[output] = choice
            self._states.add(output)
        self._learn(output, found)

    def _learn(self, name: str, found: Sum | None) -> None:
        if found is not None:
            self._known[name] = found

    def _whole(self, name: str) -> Sum | None:
        shape = self.shapes.get(name)
        return self.sums.of(Part(self.place(name), 0, shape[-1])) if shape else None

    def _read(self, name: str, *kept_apart: set[Place]) -> Sum | None:
        """The value; a part of its own where it is kept apart."""
        if name in self.weights:
            constant = self._constant(name)
            return self._whole(name) if constant is None else constant
        known = None if any(self.place(name) in places for places in kept_apart) else self._known.get(name)
        return self._whole(name) if known is None else known

    def _constant(self, name: str) -> Sum | None:
        """Of rows that are all one vector, or one number everywhere."""
        if name not in self._constants:
            self._constants[name] = self._new_constant(name)
        return self._constants[name]

    def _new_constant(self, name: str) -> Sum | None:
        tensor = self.weights[name]
        if tensor.data_type not in FLOATS or math.prod(tensor.dims) > _LONGEST_VECTOR:
            return None
        numbers = numpy_helper.to_array(tensor)
        if numbers.size and (numbers == numbers.flat[0]).all():
            return number(float(numbers.flat[0]))
        rows = numbers.reshape(-1, numbers.shape[-1]) if numbers.size else np.zeros((0, 1))
        if not len(rows) or not (rows == rows[0]).all():
            return None
        vector = rows[0]
        key = hashlib.sha256(vector.tobytes()).hexdigest()
        self.vectors[key] = vector
        return self.sums.of(Vector(key, 0, vector.size))

    def _product(self, node: onnx.NodeProto) -> Sum | None:
        left, matrix = node.input[0], self._matrices.get(node.input[1])
        shape = self.shapes.get(left)
        if matrix is None or shape is None or len(shape) < _MATRIX or _attribute(node, "transA", 0):
            return None
        if _attribute(node, "transB", 0):
            matrix = matrix.transposed()
        total: Sum | None = ZERO
        low = 0
        for name in self._operands(left):
            high = low + self.shapes[name][-1]
            if self._read(name) != ZERO and total is not None:
                total = added(total, self.sums.of(Product(self.place(name), matrix.cut(0, low, high))))
            low = high
        if total is not None and node.op_type == "Gemm":
            total = added(ZERO, total, float(_attribute(node, "alpha", 1.0)))
        if total is not None and len(node.input) > 2 and node.input[2]:
            more = self._matching(node.input[2], node.output[0])
            total = None if more is None else added(total, more, float(_attribute(node, "beta", 1.0)))
        return total

    def _activation(self, node: onnx.NodeProto) -> Sum | None:
        argument = self._read(node.input[0])
        if argument is None:
            return None
        values = [float(_attribute(node, name, given)) for name, given in ACTIVATIONS[node.op_type].items()]
        made = self.sums.of(Activated(Activation(node.op_type.lower(), *values), argument))
        self.memories.setdefault(made, self.place(node.input[0]))
        return made

    def _matching(self, name: str, result: str) -> Sum | None:
        """An operand of an operator by elements; None for one that is repeated to fit."""
        found = self._read(name, self._states, self._activated)
        shape, wanted = self.shapes.get(name), self.shapes.get(result)
        if found is None or shape is None or not wanted:
            return None
        if self._is_condition(found):
            return found if shape[-1] == 1 and math.prod(shape) == math.prod(wanted[:-1]) else None
        if name in self.weights and self._constant(name) is not None:
            is_number = not self.sums.parts(found)
            return found if is_number or shape[-1] == wanted[-1] else None
        return found if math.prod(shape) == math.prod(wanted) and shape[-1:] == wanted[-1:] else None

    def _elementwise(self, node: onnx.NodeProto) -> Sum | None:
        operands = [self._matching(name, node.output[0]) for name in node.input]
        total = operands[0]
        if node.op_type == "Neg" and total is not None:
            return added(ZERO, total, -1.0)
        if node.op_type == "Mul" and any(each and self._is_condition(each) for each in operands):
            operands = [self._apart(name, each) for name, each in zip(node.input, operands, strict=True)]
            total = operands[0]
        for each in operands[1:]:
            if total is None or each is None:
                return None
            if node.op_type == "Mul":
                total = multiplied(total, each)
            else:
                total = added(total, each, -1.0 if node.op_type == "Sub" else 1.0)
        return total

    # ---- conditions, by which rows keep their states

    def _condition(self, name: str) -> Sum | None:
        """A condition as 1 or 0."""
        if self.kinds.get(name) != TensorProto.BOOL:
            return None
        negated = False
        while name in self._negated:
            name, negated = self._negated[name], not negated
        mask = self.sums.of(Mask(self.place(name)))
        return added(number(1.0), mask, -1.0) if negated else mask

    def _masks(self, of: Sum) -> list[Mask]:
        return [each for each in self.sums.parts(of) if isinstance(each, Mask)]

    def _is_condition(self, of: Sum) -> bool:
        """Whether it is a condition or its contrary."""
        parts = self.sums.parts(of)
        return bool(parts) and all(isinstance(each, Mask) for each in parts)

    def _apart(self, name: str, known: Sum | None) -> Sum | None:
        """An operand beside a condition: zeros, a condition itself, or a part of its own."""
        if known is None or known == ZERO or self._is_condition(known):
            return known
        return self._whole(name)

    def _where(self, node: onnx.NodeProto) -> Sum | None:
        """`m * x + y - m * y`"""
        condition, wanted = self._condition(node.input[0]), self.shapes.get(node.output[0])
        shape = self.shapes.get(node.input[0])
        rows = shape and wanted and shape[-1] == 1 and math.prod(shape) == math.prod(wanted[:-1])
        holds, fails = (self._apart(name, self._matching(name, node.output[0])) for name in node.input[1:])
        if condition is None or holds is None or fails is None or not rows:
            return None
        chosen, left = multiplied(condition, holds), multiplied(condition, fails)
        both = None if chosen is None else added(chosen, fails)
        return None if both is None or left is None else added(both, left, -1.0)

    def _choice(self, of: Sum) -> Choice | None:
        """What `m * x + y - m * y` chooses; None for another sum."""
        terms = {frozenset(factors): factor for factors, factor in self.sums.terms(of)}
        masks = {*self._masks(of)}
        whole = [each for each in dict.fromkeys(self.sums.parts(of)) if self.is_whole(each)]
        if len(masks) != 1:
            return None
        (mask,) = masks
        beside = [(terms.pop(frozenset((mask, each)), 0.0), terms.pop(frozenset((each,)), 0.0)) for each in whole]
        holds = [each.place for each, found in zip(whole, beside, strict=True) if found == (1.0, 0.0)]
        fails = [each.place for each, found in zip(whole, beside, strict=True) if found == (-1.0, 1.0)]
        if terms or len(holds) > 1 or len(fails) > 1 or len(holds) + len(fails) != len(whole):
            return None
        return Choice(mask.place, *(next(iter(each), None) for each in (holds, fails)))

    def is_whole(self, factor: Factor | None) -> TypeGuard[Part]:
        """Whether it is all columns of a tensor that is not looked into."""
        if not isinstance(factor, Part):
            return False
        shape = self.shapes[factor.place if isinstance(factor.place, str) else factor.place[0]]
        return (factor.low, factor.high) == (0, shape[-1])

    def _range(self, data: str, name: str, axis: int, start: int, step: int) -> Sum | None:
        last = len(self.shapes[data]) - 1
        place = self.place(name)
        if axis == last:
            known = self._read(data, self._states)
            kept = known is not None and step == 1 and len(self.shapes[name]) == last + 1
            return self.sums.columns(known, start, start + self.shapes[name][-1]) if known and kept else None
        known = self._read(place[0], self._states) if isinstance(place, tuple) else None
        return self._moved(known, place) if known and isinstance(place, tuple) else None

    def _moved(self, known: Sum, to: tuple[str, int, int]) -> Sum | None:
        """One index of a value that is a product with the tensors it is made of: the product of their index."""
        total: Sum | None = ZERO
        for factors, factor in self.sums.terms(known):
            term: Sum | None = number(factor)
            for each in factors:
                made = self._index(each, to)
                term = None if term is None or made is None else multiplied(term, made)
            total = None if total is None or term is None else added(total, term)
        return total

    def _index(self, factor: Factor, to: tuple[str, int, int]) -> Sum | None:
        if isinstance(factor, Vector):
            return self.sums.of(factor)
        if isinstance(factor, Activated | Mask) or not isinstance(factor.place, str):
            return None
        if self.shapes[factor.place][:-1] != self.shapes[to[0]][:-1]:
            return None
        at = factor.place, *to[1:]
        if isinstance(factor, Product):
            return self.sums.of(Product(at, factor.matrix))
        return self.sums.of(Part(at, factor.low, factor.high))


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
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
    return len(tensor.dims) == _MATRIX and tensor.data_type in FLOATS


def _bytes(tensor: onnx.TensorProto) -> bytes:
    return tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()


def _start(tensor: onnx.TensorProto) -> Any:
    return tensor.data_type, *tensor.dims, _bytes(tensor)[:_PREFIX_BYTES]
