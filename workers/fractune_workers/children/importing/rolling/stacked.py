"""Steps that do not follow from each other: one computation for each index of a tensor, and the results joined.

Keras writes a `TimeDistributed` layer so: each step is an index, a product with the same matrix, a bias, perhaps an
activation. The steps become one computation of all indexes, with one product in the place of many.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce

import numpy as np
import onnx

from fractune_workers.children.importing.onnx_graph import operator_of
from fractune_workers.children.importing.rolling.made import Made
from fractune_workers.children.importing.rolling.places import ACTIVATION_NAMES, ACTIVATIONS
from fractune_workers.children.importing.rolling.sums import (
    Activated,
    Factor,
    Mask,
    Matrix,
    Part,
    Place,
    Product,
    Sum,
    Vector,
)

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
