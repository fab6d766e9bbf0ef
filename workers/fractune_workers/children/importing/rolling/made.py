"""Nodes, weights and types that are made in the place of others in an ONNX graph."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fractune_workers.children.importing.onnx_graph import name_of_part
from fractune_workers.children.importing.rolling.places import Array
from fractune_workers.children.importing.rolling.sums import Place
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
