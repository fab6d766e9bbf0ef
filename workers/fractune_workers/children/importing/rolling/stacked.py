"""What is made in the place of other nodes of an ONNX graph, and steps that do not follow from each other.

Keras writes a `TimeDistributed` layer so: each step is an index, a product with the same matrix, a bias, perhaps an
activation. The steps become one computation of all indexes, with one product in the place of many.
"""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fractune_workers.children.importing.onnx_graph import name_of_part, operator_of
from fractune_workers.children.importing.rolling.places import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    Activated,
    Array,
    Factor,
    Mask,
    Matrix,
    Part,
    Place,
    Product,
    Sum,
    Vector,
)
from fractune_workers.children.importing.rolling.values import Values


class Made:
    def __init__(self, values: Values, bytes_left: int) -> None:
        self.values = values
        self.bytes_left = bytes_left
        """of weights that still may be made"""
        self.made: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.types: list[onnx.ValueInfoProto] = []
        self.stacks: dict[Any, str] = {}
        """by their parts: tensors of several steps"""
        self.replaced = set[str]()
        """names of values that other nodes make now"""
        self._numbers = itertools.count()
        self.near = onnx.NodeProto()
        """the node that the next nodes stand for"""
        self.kind = 0

    def add(
        self, operator: str, inputs: Sequence[str], shape: Sequence[int], output: str = "", **attributes: Any
    ) -> str:
        name = output or self.new_name()
        self.made.append(helper.make_node(operator, inputs, [name], name_of_part(self.near), **attributes))
        self.learn(name, shape)
        return name

    def learn(self, name: str, shape: Sequence[int]) -> None:
        if name not in self.values.shapes:
            self.values.shapes[name] = list(shape)
            self.types.append(helper.make_tensor_value_info(name, self.kind, shape))

    def new_name(self) -> str:
        names = (f"{self.near.output[0]}/rolled {number}" for number in self._numbers)
        return next(name for name in names if name not in self.values.shapes and name not in self.values.kinds)

    def weight(self, numbers: Array) -> str:
        name = self.new_name()
        self.values.shapes[name] = list(numbers.shape)
        self.tensors.append(numpy_helper.from_array(np.array(numbers, order="C"), name))
        return name

    def whole_numbers(self, numbers: Sequence[int] | int) -> str:
        return self.weight(np.array(numbers, np.int64))

    def shaped(self, name: str, shape: Sequence[int], output: str = "") -> str:
        if not output and self.values.shapes[name] == list(shape):
            return name
        return self.add("Reshape", [name, self.whole_numbers(shape)], shape, output)

    def at(self, name: str, axis: int, index: int, output: str = "") -> str:
        """One index of a tensor."""
        shape = self.values.shapes[name]
        return self.add(
            "Gather", [name, self.whole_numbers(index)], shape[:axis] + shape[axis + 1 :], output, axis=axis
        )

    def joined(self, names: Sequence[str], axis: int) -> str:
        shapes = [self.values.shapes[name] for name in names]
        whole = [*shapes[0]]
        whole[axis] = sum(shape[axis] for shape in shapes)
        return names[0] if len(names) == 1 else self.add("Concat", names, whole, axis=axis)

    def type(self) -> np.dtype[Any]:
        return helper.tensor_dtype_to_np_dtype(self.kind)

    # ---- tensors of several steps

    def is_whole(self, places: Sequence[Place]) -> bool:
        """Whether these are all indexes of one tensor along an axis, in order."""
        source, axis = places[0][:2] if isinstance(places[0], tuple) else ("", 0)
        if not source or self.values.shapes[source][axis] != len(places):
            return False
        return list(places) == [(source, axis, index) for index in range(len(places))]

    def stack(self, places: Sequence[Place], batch: int) -> str:
        key = tuple(places)
        if key not in self.stacks:
            self.stacks[key] = self._new_stack(places, batch)
        return self.stacks[key]

    def _new_stack(self, places: Sequence[Place], batch: int) -> str:
        of = {place[:2] for place in places if isinstance(place, tuple)}
        if len(of) > 1 or not all(isinstance(place, tuple) for place in places):
            parts = [self.named(place) for place in places]
            return self.joined([self.shaped(name, [1, batch, self.values.shapes[name][-1]]) for name in parts], 0)
        ((name, axis),) = of
        shape = self.values.shapes[name]
        if not self.is_whole(places):
            indexes = self.whole_numbers([place[2] for place in places if isinstance(place, tuple)])
            shape = [*shape[:axis], len(places), *shape[axis + 1 :]]
            name = self.add("Gather", [name, indexes], shape, axis=axis)
        if axis:
            order = [axis, *range(axis), *range(axis + 1, len(shape))]
            shape = [shape[each] for each in order]
            name = self.add("Transpose", [name], shape, perm=order)
        return self.shaped(name, [len(places), batch, shape[-1]])

    def named(self, place: Place) -> str:
        return place if isinstance(place, str) else self.at(*place)

    def rows_before(self, node: onnx.NodeProto) -> int:
        """Rows along the axes before the one that a node joins along."""
        shape = self.values.shapes[node.input[0]]
        axis = next(each.i for each in node.attribute if each.name == "axis")
        return math.prod(shape[: axis % len(shape)])

    def join(self, node: onnx.NodeProto, states: str, output: str) -> None:
        """What the node makes of these states (steps, batch, units), under the name `output`."""
        steps, batch, units = self.values.shapes[states]
        if self.rows_before(node) > 1:
            states = self.add("Transpose", [states], [batch, steps, units], perm=[1, 0, 2])
        self.shaped(states, self.values.shapes[node.output[0]], output)


_LEAST_STEPS = 2


def stack_up(made: Made) -> None:
    """Replace the joined results of such steps."""
    for node in made.values.nodes:
        if operator_of(node) == "Concat" and not made.replaced & {*node.input, *node.output}:
            _replace(made, node)


@dataclass
class _Read:
    """What a step reads."""

    indexes: set[int] = field(default_factory=set)
    matrices: set[Matrix] = field(default_factory=set)


def _replace(made: Made, node: onnx.NodeProto) -> None:
    sums = [made.values.sum_of(name) for name in node.input]
    shapes = [made.values.shapes.get(name) for name in node.input]
    first, shape = sums[0], shapes[0]
    if len(sums) < _LEAST_STEPS or not first or not shape or shapes.count(shape) < len(shapes):
        return
    batch, axis = math.prod(shape[:-1]), next(each.i for each in node.attribute if each.name == "axis") % len(shape)
    if shape[axis] != 1 or axis == len(shape) - 1 or made.rows_before(node) not in (1, batch):
        return
    read = [_Read() for _ in sums]
    forms = {_form(made, each, step) if each else None for each, step in zip(sums, read, strict=True)}
    matrices = read[0].matrices
    size = sum(made.values.array(each).nbytes for each in matrices if not _is_weight(made, each))
    if len(forms) > 1 or None in forms or not matrices or size > made.bytes_left:
        return
    made.bytes_left -= size
    made.near, made.kind = node, made.values.kinds[node.output[0]]
    whole = _Whole(made, [step.indexes.pop() for step in read], batch)
    made.join(node, whole.sum(first), node.output[0])
    made.replaced.add(node.output[0])


def _form(made: Made, of: Sum, read: _Read) -> Hashable:
    """Equal for sums that differ by the index that they read alone; None where a sum reads something else."""
    terms = []
    for factors, factor in made.values.sums.terms(of):
        forms = [_form_of(made, each, read) for each in factors]
        if None in forms:
            return None
        terms.append((frozenset(Counter(forms).items()), factor))
    return frozenset(terms) if len(read.indexes) == 1 else None


def _form_of(made: Made, factor: Factor, read: _Read) -> Hashable:
    if isinstance(factor, Vector):
        return factor
    if isinstance(factor, Activated):
        form = _form(made, factor.argument, read)
        return None if form is None else (factor.function, form)
    if isinstance(factor, Mask) or not isinstance(factor.place, tuple):
        return None
    *tensor, index = factor.place
    read.indexes.add(index)
    if isinstance(factor, Part):
        return *tensor, factor.low, factor.high
    read.matrices.add(factor.matrix)
    return *tensor, factor.matrix


def _is_weight(made: Made, matrix: Matrix) -> bool:
    """Whether it is all of a weight."""
    rows, columns = made.values.shapes[matrix.weight]
    return not matrix.turned and (matrix.rows, matrix.columns) == ((0, rows), (0, columns))


class _Whole:
    """Makes the nodes of a sum of all steps: (steps, batch, width)."""

    def __init__(self, made: Made, indexes: Sequence[int], batch: int) -> None:
        self._made, self._indexes, self._batch = made, indexes, batch

    def sum(self, of: Sum) -> str:
        return reduce(lambda one, other: self._both("Add", one, other), map(self._term, of))

    def _term(self, term: tuple[tuple[int, ...], float]) -> str:
        numbers, factor = term
        parts = [self._factor(self._made.values.sums.factors[each]) for each in numbers]
        if factor != 1 or not parts:
            parts.append(self._made.weight(np.full(1, factor, self._made.type())))
        return reduce(lambda one, other: self._both("Mul", one, other), parts)

    def _both(self, operator: str, one: str, other: str) -> str:
        shapes = [self._made.values.shapes[each] for each in (one, other)]
        return self._made.add(operator, [one, other], list(np.broadcast_shapes(*map(tuple, shapes))))

    def _factor(self, factor: Factor) -> str:
        made = self._made
        if isinstance(factor, Vector):
            return made.weight(made.values.vectors[factor.key][factor.low : factor.high].astype(made.type()))
        if isinstance(factor, Activated):
            argument, name = self.sum(factor.argument), ACTIVATION_NAMES[factor.function.name]
            known = {each: value for each, value in asdict(factor.function).items() if each in ACTIVATIONS[name]}
            return made.add(name, [argument], made.values.shapes[argument], **known)
        stack = self._stack(factor.place)
        *steps, width = made.values.shapes[stack]
        if isinstance(factor, Product):
            low, high = factor.matrix.columns
            return made.add("MatMul", [stack, self._matrix(factor.matrix)], [*steps, high - low])
        if isinstance(factor, Mask) or (factor.low, factor.high) == (0, width):
            return stack
        bounds = [made.whole_numbers([number]) for number in (factor.low, factor.high, len(steps))]
        return made.add("Slice", [stack, *bounds], [*steps, factor.high - factor.low])

    def _stack(self, place: Place) -> str:
        """The indexes of all steps."""
        tensor, axis = place[0], int(place[1])
        return self._made.stack([(tensor, axis, index) for index in self._indexes], self._batch)

    def _matrix(self, matrix: Matrix) -> str:
        return matrix.weight if _is_weight(self._made, matrix) else self._made.weight(self._made.values.array(matrix))
