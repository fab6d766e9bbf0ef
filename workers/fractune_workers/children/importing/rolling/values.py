"""The values of an ONNX graph as sums, in a second walk over its nodes.

The states of a recurrence stay parts of their own: what a product with a constant matrix reads, and what an activation
reads beside another node. So the sum of a step's result does not reach into the step before it.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from fractune_workers.children.importing.onnx_graph import domain_of
from fractune_workers.children.importing.rolling import places
from fractune_workers.children.importing.rolling.places import (
    ACTIVATIONS,
    FLOATS,
    MATRIX,
    PRODUCTS,
    VIEWS,
    Array,
    Places,
    attribute,
)
from fractune_workers.children.recurrent.recurrence import Activation

_CHOOSING = ("Add", "Sum", "Where")
_ELEMENTWISE = ("Add", "Mul", "Neg", "Sub", "Sum")
SHARED = frozenset(
    [*ACTIVATIONS, *PRODUCTS, *VIEWS, *_ELEMENTWISE, "Cast", "Gather", "Not", "Slice", "Split", "Transpose", "Where"]
)
"""Operators that are computed once where several nodes have the same operands"""
_LONGEST_VECTOR = 65_536


Condition = tuple[places.Place, bool]
"""A tensor of conditions, and whether they are negated"""


@dataclass(frozen=True)
class Choice:
    """A tensor that has the rows of one tensor where a condition holds, and those of another tensor elsewhere."""

    mask: places.Place
    holds: places.Place | None
    """None for zeros"""
    fails: places.Place | None

    @property
    def sides(self) -> Sequence[tuple[Condition, places.Place | None, places.Place | None]]:
        """The condition, the tensor where it holds, and the other one; then the same with the negated condition."""
        return ((self.mask, False), self.holds, self.fails), ((self.mask, True), self.fails, self.holds)


class Values(Places):
    def __init__(self, graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
        super().__init__(graph, nodes)
        self.sums = places.Sums()
        self.memories: dict[places.Sum, places.Place] = {}
        """by an activation: where it was read from"""
        self.choices: dict[places.Place, Choice] = {}
        self.vectors: dict[str, Array] = {}
        self._known: dict[str, places.Sum] = {}
        self._constants: dict[str, places.Sum | None] = {}

    def evaluate(self) -> None:
        """Find the sums of all values."""
        for node in self.nodes:
            if node.output and self.kinds.get(node.output[0]) in FLOATS:
                self._evaluate(node)

    def sum_of(self, name: str) -> places.Sum | None:
        """What a value is; None where nothing is known of it."""
        return self._known.get(name)

    def _evaluate(self, node: onnx.NodeProto) -> None:
        kind = "" if domain_of(node.domain) else node.op_type
        output = node.output[0]
        found: places.Sum | None = None
        if output in self.places and self.places[output] == self.place(node.input[0]):
            found = self._known.get(node.input[0])
        elif kind in PRODUCTS:
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

    def _learn(self, name: str, found: places.Sum | None) -> None:
        if found is not None:
            self._known[name] = found

    def _whole(self, name: str) -> places.Sum | None:
        shape = self.shapes.get(name)
        return self.sums.of(places.Part(self.place(name), 0, shape[-1])) if shape else None

    def _read(self, name: str, *kept_apart: set[places.Place]) -> places.Sum | None:
        """The value; a part of its own where it is kept apart."""
        if name in self.weights:
            constant = self._constant(name)
            return self._whole(name) if constant is None else constant
        known = None if any(self.place(name) in places for places in kept_apart) else self._known.get(name)
        return self._whole(name) if known is None else known

    def _constant(self, name: str) -> places.Sum | None:
        """Of rows that are all one vector, or one number everywhere."""
        if name not in self._constants:
            self._constants[name] = self._new_constant(name)
        return self._constants[name]

    def _new_constant(self, name: str) -> places.Sum | None:
        tensor = self.weights[name]
        if tensor.data_type not in FLOATS or math.prod(tensor.dims) > _LONGEST_VECTOR:
            return None
        numbers = numpy_helper.to_array(tensor)
        if numbers.size and (numbers == numbers.flat[0]).all():
            return places.number(float(numbers.flat[0]))
        rows = numbers.reshape(-1, numbers.shape[-1]) if numbers.size else np.zeros((0, 1))
        if not len(rows) or not (rows == rows[0]).all():
            return None
        vector = rows[0]
        key = hashlib.sha256(vector.tobytes()).hexdigest()
        self.vectors[key] = vector
        return self.sums.of(places.Vector(key, 0, vector.size))

    def _product(self, node: onnx.NodeProto) -> places.Sum | None:
        left, matrix = node.input[0], self._matrices.get(node.input[1])
        shape = self.shapes.get(left)
        if matrix is None or shape is None or len(shape) < MATRIX or attribute(node, "transA", 0):
            return None
        if attribute(node, "transB", 0):
            matrix = matrix.transposed()
        total: places.Sum | None = places.ZERO
        low = 0
        for name in self._operands(left):
            high = low + self.shapes[name][-1]
            if self._read(name) != places.ZERO and total is not None:
                total = places.added(total, self.sums.of(places.Product(self.place(name), matrix.cut(0, low, high))))
            low = high
        if total is not None and node.op_type == "Gemm":
            total = places.added(places.ZERO, total, float(attribute(node, "alpha", 1.0)))
        if total is not None and len(node.input) > 2 and node.input[2]:
            more = self._matching(node.input[2], node.output[0])
            total = None if more is None else places.added(total, more, float(attribute(node, "beta", 1.0)))
        return total

    def _activation(self, node: onnx.NodeProto) -> places.Sum | None:
        argument = self._read(node.input[0])
        if argument is None:
            return None
        values = [float(attribute(node, name, given)) for name, given in ACTIVATIONS[node.op_type].items()]
        made = self.sums.of(places.Activated(Activation(node.op_type.lower(), *values), argument))
        self.memories.setdefault(made, self.place(node.input[0]))
        return made

    def _matching(self, name: str, result: str) -> places.Sum | None:
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

    def _elementwise(self, node: onnx.NodeProto) -> places.Sum | None:
        operands = [self._matching(name, node.output[0]) for name in node.input]
        total = operands[0]
        if node.op_type == "Neg" and total is not None:
            return places.added(places.ZERO, total, -1.0)
        if node.op_type == "Mul" and any(each and self._is_condition(each) for each in operands):
            operands = [self._apart(name, each) for name, each in zip(node.input, operands, strict=True)]
            total = operands[0]
        for each in operands[1:]:
            if total is None or each is None:
                return None
            if node.op_type == "Mul":
                total = places.multiplied(total, each)
            else:
                total = places.added(total, each, -1.0 if node.op_type == "Sub" else 1.0)
        return total

    # ---- conditions, by which rows keep their states

    def _condition(self, name: str) -> places.Sum | None:
        """A condition as 1 or 0."""
        if self.kinds.get(name) != TensorProto.BOOL:
            return None
        negated = False
        while name in self._negated:
            name, negated = self._negated[name], not negated
        mask = self.sums.of(places.Mask(self.place(name)))
        return places.added(places.number(1.0), mask, -1.0) if negated else mask

    def _masks(self, of: places.Sum) -> list[places.Mask]:
        return [each for each in self.sums.parts(of) if isinstance(each, places.Mask)]

    def _is_condition(self, of: places.Sum) -> bool:
        """Whether it is a condition or its contrary."""
        parts = self.sums.parts(of)
        return bool(parts) and all(isinstance(each, places.Mask) for each in parts)

    def _apart(self, name: str, known: places.Sum | None) -> places.Sum | None:
        """An operand beside a condition: zeros, a condition itself, or a part of its own."""
        if known is None or known == places.ZERO or self._is_condition(known):
            return known
        return self._whole(name)

    def _where(self, node: onnx.NodeProto) -> places.Sum | None:
        """`m * x + y - m * y`"""
        condition, wanted = self._condition(node.input[0]), self.shapes.get(node.output[0])
        shape = self.shapes.get(node.input[0])
        rows = shape and wanted and shape[-1] == 1 and math.prod(shape) == math.prod(wanted[:-1])
        holds, fails = (self._apart(name, self._matching(name, node.output[0])) for name in node.input[1:])
        if condition is None or holds is None or fails is None or not rows:
            return None
        chosen, left = places.multiplied(condition, holds), places.multiplied(condition, fails)
        both = None if chosen is None else places.added(chosen, fails)
        return None if both is None or left is None else places.added(both, left, -1.0)

    def _choice(self, of: places.Sum) -> Choice | None:
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

    def is_whole(self, factor: places.Factor | None) -> TypeGuard[places.Part]:
        """Whether it is all columns of a tensor that is not looked into."""
        if not isinstance(factor, places.Part):
            return False
        shape = self.shapes[factor.place if isinstance(factor.place, str) else factor.place[0]]
        return (factor.low, factor.high) == (0, shape[-1])

    def _range(self, data: str, name: str, axis: int, start: int, step: int) -> places.Sum | None:
        last = len(self.shapes[data]) - 1
        place = self.place(name)
        if axis == last:
            known = self._read(data, self._states)
            kept = known is not None and step == 1 and len(self.shapes[name]) == last + 1
            return self.sums.columns(known, start, start + self.shapes[name][-1]) if known and kept else None
        known = self._read(place[0], self._states) if isinstance(place, tuple) else None
        return self._moved(known, place) if known and isinstance(place, tuple) else None

    def _moved(self, known: places.Sum, to: tuple[str, int, int]) -> places.Sum | None:
        """One index of a value that is a product with the tensors it is made of: the product of their index."""
        total: places.Sum | None = places.ZERO
        for factors, factor in self.sums.terms(known):
            term: places.Sum | None = places.number(factor)
            for each in factors:
                made = self._index(each, to)
                term = None if term is None or made is None else places.multiplied(term, made)
            total = None if total is None or term is None else places.added(total, term)
        return total

    def _index(self, factor: places.Factor, to: tuple[str, int, int]) -> places.Sum | None:
        if isinstance(factor, places.Vector):
            return self.sums.of(factor)
        if isinstance(factor, places.Activated | places.Mask) or not isinstance(factor.place, str):
            return None
        if self.shapes[factor.place][:-1] != self.shapes[to[0]][:-1]:
            return None
        at = factor.place, *to[1:]
        if isinstance(factor, places.Product):
            return self.sums.of(places.Product(at, factor.matrix))
        return self.sums.of(places.Part(at, factor.low, factor.high))
