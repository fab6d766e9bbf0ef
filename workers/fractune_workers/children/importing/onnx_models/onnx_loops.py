"""`Loop` and `Scan` with a known number of iterations, unrolled.

Each iteration is a copy of the body with names of its own. It is folded before the next one is made, so a condition
that follows from constants is known in time. Every iteration counts towards the limit of nodes before it is made.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_core.model_inputs import CONSTANT
from fractune_workers.children.importing.onnx_graph import captured_by, described, name_of_part, refusal
from fractune_workers.children.importing.onnx_models.onnx_shapes import MOST_CONNECTIONS, count_nodes

_AXES_ARE_INPUTS = 13
"""The first opset in which `Unsqueeze` reads its axes"""
_SCAN_WITHOUT_BATCH = 9
"""The first opset in which `Scan` has no axis for a batch"""
_PASS_ON = frozenset({"Cast", "Identity"})
_HINT = "export the model with a fixed number of iterations"


class Folder(Protocol):
    """What unrolling asks of the walk over the graph."""

    def numbers(self, name: str) -> npt.NDArray[Any] | None:
        """Of a small constant."""

    def shape(self, name: str) -> list[int] | None:
        """Of a tensor with fixed dimensions."""

    def sources(self, name: str) -> list[str]:
        """The inputs of the model that a tensor follows from."""

    def add_constant(self, name: str, numbers: npt.NDArray[Any]) -> None: ...

    def add_weights(self, tensors: Iterable[onnx.TensorProto]) -> None: ...

    def count(self, nodes: int, what: str) -> None:
        """Raises BadModel when the model has too many nodes with these."""

    def foresee(self, nodes: int, what: str) -> None:
        """Raises BadModel when the model would have too many nodes with these, which are counted later."""

    def walk(self, nodes: Sequence[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
        """The nodes that are left of these once they are folded."""


def unrolled(node: onnx.NodeProto, opset: int, folder: Folder) -> Iterable[onnx.NodeProto]:
    """The nodes in the place of a loop. Raises BadModel where the number of iterations is not known."""
    body = next((each.g for each in node.attribute if each.name == "body"), None)
    if body is None or (node.op_type == "Scan" and opset < _SCAN_WITHOUT_BATCH):
        raise refusal(node, opset, "its form cannot be read; export the model with opset 9 or later")
    yield from (_Loop if node.op_type == "Loop" else _Scan)(node, body, opset, folder).nodes()


class _Unrolling:
    def __init__(self, node: onnx.NodeProto, body: onnx.GraphProto, opset: int, folder: Folder) -> None:
        self._node, self._body, self._opset, self._folder = node, body, opset, folder
        self._name = next(filter(None, node.output), node.name)
        self._attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        self._counted = False
        self._what = f"the model, with {described(node)} unrolled,"
        self._around = 0
        """nodes that each iteration adds around the body: `Gather` and `Unsqueeze`"""

    def _refusal(self, why: str) -> BadModel:
        return refusal(self._node, self._opset, why)

    def _hint(self, name: str, example: str) -> str:
        """The remedy where `name` is not known before: inputs of one number may become constants."""
        sources = self._folder.sources(name)
        shapes = [self._folder.shape(each) for each in sources]
        if not sources or any(shape is None or math.prod(shape) != 1 for shape in shapes):
            return _HINT
        options = " ".join(f"--input {each}={CONSTANT}{example}" for each in sources)
        which = "input that decides it a constant" if len(sources) == 1 else "inputs that decide it constants"
        return f"make the {which} with {options}, or {_HINT}"

    def _count_all(self, trips: int) -> None:
        """Count all iterations before the first one is made, and foresee the loops inside them."""
        self._folder.foresee(trips * (_unrolled_size(self._body, self._folder.numbers) + self._around), self._what)
        self._count(trips)
        self._counted = True

    def _count(self, trips: int) -> None:
        self._folder.count(trips * max(1, count_nodes(self._body.node) + self._around), self._what)

    def _iteration(self, number: int, given: Mapping[str, str]) -> Iterable[onnx.NodeProto]:
        """The nodes of one iteration; `given` are the values of the body's inputs. `self._results` are its outputs."""
        if not self._counted:
            self._count(1)
        prefix = f"{self._name}/{number}/"
        copy = _renamed(self._body, given, prefix)
        self._folder.add_weights(copy.initializer)
        yield from self._folder.walk(copy.node)
        self._results = [value.name for value in copy.output]

    def _constant(self, name: str, numbers: npt.NDArray[Any]) -> str:
        whole = f"{self._name}/{name}"
        self._folder.add_constant(whole, numbers)
        return whole

    def _finished(
        self, state: Sequence[str], stacks: Sequence[Sequence[str]], axes: Sequence[int]
    ) -> list[onnx.NodeProto]:
        """Nodes that name the outputs: the last states, and what the iterations made, stacked."""
        outputs = list(self._node.output)
        nodes = [
            helper.make_node("Identity", [value], [output], name_of_part(self._node))
            for value, output in zip(state, outputs[: len(state)], strict=False)
            if output
        ]
        for output, parts, axis in zip(outputs[len(state) :], stacks, axes, strict=False):
            if output:
                nodes += self._stacked(output, parts, axis)
        return nodes

    def _stacked(self, output: str, parts: Sequence[str], axis: int) -> list[onnx.NodeProto]:
        if not 0 < len(parts) <= MOST_CONNECTIONS:
            raise self._refusal(
                f"it stacks the results of {len(parts):,} iterations, and 1 to {MOST_CONNECTIONS:,} can be unrolled; "
                f"{_HINT}"
            )
        wide = [f"{output}/{number}" for number in range(len(parts))]
        attributes, axes = dict[str, Any](), list[str]()
        if self._opset >= _AXES_ARE_INPUTS:
            axes = [self._constant(f"axes of {output}", np.array([axis]))]
        else:
            attributes = {"axes": [axis]}
        pairs = zip(parts, wide, strict=True)
        name = name_of_part(self._node)
        nodes = [helper.make_node("Unsqueeze", [part, *axes], [made], name, **attributes) for part, made in pairs]
        return [*nodes, helper.make_node("Concat", wide, [output], name, axis=axis)]


class _Loop(_Unrolling):
    def nodes(self) -> Iterable[onnx.NodeProto]:
        state = list(self._node.input[2:])
        self._around = max(0, len(self._node.output) - len(state))
        trips, goes_on = self._trips(), self._goes_on()
        has_condition = len(self._node.input) > 1 and bool(self._node.input[1])
        if goes_on and _runs_all(self._node, self._body):
            if trips is None:
                raise BadModel(f"{described(self._node)} never ends, for its condition never changes; {_HINT}")
            self._count_all(trips)
        count, *names = (value.name for value in self._body.input)
        made: list[list[str]] = []
        number, yes = 0, np.ones((), np.bool_)
        while goes_on and (trips is None or number < trips):
            given = [self._constant(f"{number} goes on", yes), *state]
            at = self._constant(f"{number} count", np.array(number))
            yield from self._iteration(number, {count: at, **dict(zip(names, given, strict=True))})
            condition, *results = self._results
            state, parts = results[: len(state)], results[len(state) :]
            made.append(parts)
            number += 1
            if has_condition:
                goes_on = self._is_true(condition)
        stacks = [[parts[at] for parts in made] for at in range(len(self._node.output) - len(state))]
        yield from self._folder.walk(self._finished(state, stacks, [0] * len(stacks)))

    def _trips(self) -> int | None:
        if not self._node.input or not self._node.input[0]:
            return None
        name = self._node.input[0]
        numbers = self._folder.numbers(name)
        if numbers is None:
            hint = self._hint(name, example="3")
            raise self._refusal(f"it runs as often as a computed number says; {hint}")
        return max(0, int(numbers.reshape(-1)[0]))

    def _goes_on(self) -> bool:
        return len(self._node.input) < 2 or not self._node.input[1] or self._is_true(self._node.input[1])

    def _is_true(self, name: str) -> bool:
        numbers = self._folder.numbers(name)
        if numbers is None:
            hint = self._hint(name, example="1")
            raise self._refusal(f"it runs as long as a computed condition holds; {hint}")
        return bool(numbers.reshape(-1)[0])


class _Scan(_Unrolling):
    def nodes(self) -> Iterable[onnx.NodeProto]:
        scanned = list(self._node.input[len(self._node.input) - int(self._attributes["num_scan_inputs"]) :])
        state = list(self._node.input[: len(self._node.input) - len(scanned)])
        stacked = len(self._node.output) - len(state)
        self._around = len(scanned) + max(0, stacked)
        axes = self._each("scan_input_axes", len(scanned))
        backwards = self._each("scan_input_directions", len(scanned))
        trips = self._trips(scanned, axes)
        self._count_all(trips)
        names = [value.name for value in self._body.input]
        made = []
        for number in range(trips):
            parts = [f"{self._name}/{number} part {at}" for at in range(len(scanned))]
            places = [trips - 1 - number if back else number for back in backwards]
            yield from self._folder.walk(
                [
                    helper.make_node(
                        "Gather", [whole, self._constant(f"{number} place {at}", np.array(place))], [part], axis=axis
                    )
                    for at, (whole, part, axis, place) in enumerate(zip(scanned, parts, axes, places, strict=True))
                ]
            )
            yield from self._iteration(number, dict(zip(names, [*state, *parts], strict=True)))
            state, results = self._results[: len(state)], self._results[len(state) :]
            made.append(results)
        turned = self._each("scan_output_directions", stacked)
        stacks = [[parts[at] for parts in made][:: -1 if turned[at] else 1] for at in range(stacked)]
        yield from self._folder.walk(self._finished(state, stacks, self._each("scan_output_axes", stacked)))

    def _each(self, name: str, count: int) -> list[int]:
        given = [int(number) for number in self._attributes.get(name, ())] or [0] * count
        if len(given) != count:
            raise BadModel(f"{described(self._node)}: its attribute '{name}' has {len(given)} numbers, not {count}")
        return given

    def _trips(self, scanned: Sequence[str], axes: Sequence[int]) -> int:
        shapes = [self._folder.shape(name) for name in scanned]
        trips = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if shape is not None}
        if None in shapes or len(trips) != 1:
            raise self._refusal(f"it reads inputs without one known length; {_HINT}")
        return trips.pop()


def _runs_all(node: onnx.NodeProto, body: onnx.GraphProto) -> bool:
    """Whether a loop that goes on once runs as often as its count says: its condition never changes."""
    if len(node.input) < 2 or not node.input[1]:
        return True
    constants = {tensor.name: tensor for tensor in body.initializer}
    for each in body.node:
        if each.op_type == "Constant" and each.attribute and each.attribute[0].HasField("t"):
            constants[each.output[0]] = each.attribute[0].t
    passed_on = {each.output[0]: each.input[0] for each in body.node if each.op_type in _PASS_ON}
    name = body.output[0].name
    while name in passed_on:
        name = passed_on.pop(name)
    return bool(numpy_helper.to_array(constants[name]).all()) if name in constants else name == body.input[1].name


def _unrolled_size(body: onnx.GraphProto, around: Callable[[str], npt.NDArray[Any] | None]) -> int:
    """The nodes of one iteration, at least, with the loops in it unrolled. `around`: constants outside the body."""
    captured = captured_by(body)

    def known(name: str) -> npt.NDArray[Any] | None:
        return around(name) if name in captured else None

    return max(1, sum(_unrolled_nodes(node, known) for node in body.node))


def _unrolled_nodes(node: onnx.NodeProto, known: Callable[[str], npt.NDArray[Any] | None]) -> int:
    body = next((each.g for each in node.attribute if each.name == "body"), None)
    if node.op_type != "Loop" or body is None or not node.input or not _runs_all(node, body):
        return count_nodes([node])
    trips = known(node.input[0])
    goes_on = known(node.input[1]) if len(node.input) > 1 and node.input[1] else np.ones((), np.bool_)
    if trips is None or goes_on is None or not goes_on.all():
        return count_nodes([node])
    return max(0, int(trips.reshape(-1)[0])) * _unrolled_size(body, known)


def _renamed(graph: onnx.GraphProto, known: Mapping[str, str], prefix: str) -> onnx.GraphProto:
    """A copy of the graph, in which names in `known` are others, and its own names begin with `prefix`."""
    made = onnx.GraphProto()
    made.CopyFrom(graph)
    own = {name for node in graph.node for name in node.output if name} | {each.name for each in graph.initializer}
    names = {**known, **{name: f"{prefix}{name}" for name in own}}
    for tensor in made.initializer:
        tensor.name = names[tensor.name]
    for value in made.output:
        value.name = names.get(value.name, value.name)
    for node in made.node:
        node.name = node.name or name_of_part(node)
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for each in node.attribute:
            if each.HasField("g"):
                each.g.CopyFrom(_renamed(each.g, _without_inputs(names, each.g), prefix))
    return made


def _without_inputs(names: Mapping[str, str], graph: onnx.GraphProto) -> dict[str, str]:
    """The names that mean the same inside a graph: its inputs hide names from around it."""
    hidden = {value.name for value in graph.input}
    return {name: other for name, other in names.items() if name not in hidden}
