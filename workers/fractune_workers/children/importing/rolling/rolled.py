"""Unrolled recurrences in an ONNX graph, replaced by ONNX's own LSTM, GRU and RNN.

The inputs of all steps are stacked, unless they are one tensor already; each state that is read becomes an index of the
node's output. A chain forwards and one backwards over the same inputs become one node of both directions. The nodes of
the steps that nothing reads any more are dropped.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fractune_core.errors import first_line
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_graph import in_order, name_of_part, needed_for, operator_of
from fractune_workers.children.importing.rolling.cells import Entries, Step
from fractune_workers.children.importing.rolling.chains import Chain, bias_of, chains_of
from fractune_workers.children.importing.rolling.places import ACTIVATION_NAMES, ACTIVATIONS, Array, Place, Span
from fractune_workers.children.importing.rolling.stacked import Made, stack_up
from fractune_workers.children.importing.rolling.values import SHARED, Values
from fractune_workers.children.recurrent.recurrence import GRU, LSTM, MASK, MASKED, Activation

_log = logging.getLogger(__name__)
_HIDDEN = 2
"""a GRU's gate with the reset"""
_PEEPHOLES = (0, 1, 2)
"""gates of an LSTM, in the order of its peepholes"""
_BEFORE_ALL = -(2**62)
"""the end of a slice that goes backwards through all indexes"""
_SMALL = 4096
"""elements of a constant that is compared with others: zeros of a state"""
_SPARE_BYTES = 2**20
"""of weights beyond those of the file: gates without a product have zeros"""


def roll_up(model: onnx.ModelProto, limits: Limits) -> None:
    """Replace the unrolled recurrences of the model, in place. Its shapes are known, and its nodes in order."""
    try:
        values = Values(model.graph, _without_repeats(model.graph))
        if not values.repeated:
            return
        values.evaluate()
        rolling = _Rolling(values, model.graph, limits)
        for group in chains_of(values, model.graph):
            rolling.replace(group)
        stack_up(rolling)
        rolling.write()
    except Exception as error:  # noqa: BLE001  attributes and shapes of any kind come from the file; it stays unrolled
        _log.info("nothing is rolled up: %s", first_line(error))


@dataclass(frozen=True)
class _Stack:
    """The inputs of all steps: (steps, batch, width)."""

    name: str
    backwards: bool
    mask: str
    """(steps, batch); empty for none"""


class _Rolling(Made):
    def __init__(self, values: Values, graph: onnx.GraphProto, limits: Limits) -> None:
        super().__init__(values, limits.file_bytes + _SPARE_BYTES)
        self._graph = graph
        self._weights: dict[Any, list[str]] = {}
        """by what is in them: names of weights that were made"""
        self.indexes: dict[Place, tuple[str, int, int]] = {}
        """by a state: its index among the states of all steps"""

    # ---- chains

    def replace(self, chains: Sequence[Chain]) -> None:
        """Replace chains that need no results of each other."""
        waiting: dict[Any, tuple[Chain, _Stack]] = {}
        for chain in chains:
            self.near = self.values.nodes[self.values.makers[chain.cell.result]]
            self.kind = self.values.kinds[chain.cell.result]
            stack = self._stacked(chain)
            if stack is None:
                continue
            form = stack.name, stack.mask, *self._form(chain)
            if (other := waiting.pop((form, not stack.backwards), None)) is not None:
                self._emit(sorted([other, (chain, stack)], key=lambda each: each[1].backwards))
            else:
                waiting[form, stack.backwards] = chain, stack
        for each in waiting.values():
            self._emit([each])

    def _form(self, chain: Chain) -> tuple[Any, ...]:
        """Equal for chains that can be two directions of one node."""
        cell, first = chain.cell, chain.steps[0]
        states = chain.before is None, first.memory_before is None
        peepholes = any(gate is not None and gate.peepholes for gate in cell.gates)
        attributes = cell.couples_forget, cell.resets_product
        return cell.cell, len(chain.steps), self._size(chain), attributes, states, peepholes

    def _size(self, chain: Chain) -> tuple[int, int]:
        """The batch and the units."""
        *outer, units = self.values.shapes[chain.cell.result]
        return math.prod(outer), units

    def _stacked(self, chain: Chain) -> _Stack | None:
        """The inputs of all steps; None where an input is read by several."""
        places = [[self.indexes.get(place, place) for place in chain.read(entries)] for entries in chain.inputs]
        if any(len(set(each)) < len(each) for each in places):
            return None
        batch, _ = self._size(chain)
        backwards = all(self.is_whole(each[::-1]) or tuple(each[::-1]) in self.stacks for each in places)
        names = [self.stack(each[::-1] if backwards else each, batch) for each in places]
        if len(names) > 1 and tuple(names) not in self.stacks:
            self.stacks[tuple(names)] = self.joined(names, 2)
        return _Stack(self.stacks.get(tuple(names), names[0]), backwards, self._mask(chain, backwards=backwards))

    def _mask(self, chain: Chain, *, backwards: bool) -> str:
        masks = [step.mask for step in chain.steps if step.mask is not None][:: -1 if backwards else 1]
        if not masks:
            return ""
        key = tuple(masks)
        if key not in self.stacks:
            batch, _ = self._size(chain)
            kind, self.kind = self.kind, onnx.TensorProto.BOOL
            whole = self.shaped(self.stack([place for place, _ in masks], batch), [len(masks), batch])
            self.stacks[key] = self.add("Not", [whole], [len(masks), batch]) if masks[0][1] else whole
            self.kind = kind
        return self.stacks[key]

    # ---- the node

    def _emit(self, pair: Sequence[tuple[Chain, _Stack]]) -> None:
        """The node of one direction, or of both."""
        chains, stacks = [chain for chain, _ in pair], [stack for _, stack in pair]
        chain, cell = chains[0], chains[0].cell
        weights = self._operands(chains)
        if weights is None:
            return
        steps, (batch, units) = len(chain.steps), self._size(chain)
        outputs = [self.new_name(), "", *([self.new_name()] if cell.cell == LSTM else [])]
        inputs = [stacks[0].name, *weights, ""]
        inputs += [self._states([each.before for each in chains], batch)]
        if cell.cell == LSTM:
            inputs += [self._states([each.steps[0].memory_before for each in chains], batch), self._peepholes(chains)]
        directions = "bidirectional" if len(pair) > 1 else "reverse" if stacks[0].backwards else "forward"
        if stacks[0].mask:
            inputs += [""] * (MASK - len(inputs)) + [stacks[0].mask]
        domain = MASKED if stacks[0].mask else None
        node = helper.make_node(
            cell.cell, inputs, outputs, name_of_part(self.near), domain=domain, direction=directions
        )
        node.attribute.extend(_attributes(chains, units))
        self.made.append(node)
        self.learn(outputs[0], [steps, len(pair), batch, units])
        if cell.cell == LSTM:
            self.learn(outputs[2], [len(pair), batch, units])
        for at, (each, stack) in enumerate(pair):
            self._name_states(each, self._direction(outputs[0], at, len(pair), 1), stack)
            memory = each.cell.memory
            if isinstance(memory, str):
                last = self._direction(outputs[2], at, len(pair), 0)
                self.shaped(last, self.values.shapes[memory], memory)
                self.replaced.add(memory)

    def _direction(self, name: str, at: int, directions: int, axis: int) -> str:
        shape = self.values.shapes[name]
        return self.at(name, axis, at) if directions > 1 else self.shaped(name, shape[:axis] + shape[axis + 1 :])

    def _name_states(self, chain: Chain, states: str, stack: _Stack) -> None:
        first, *others = chain.steps
        shows_zeros = first.mask and any(step.shown or step.kept is None for step in others)
        shown = self._with_zeros(states, stack.mask) if shows_zeros else states
        for at, step in enumerate(chain.steps):
            index = len(others) - at if stack.backwards else at
            self._name_state(step.result, shown if step.kept is None else states, index)
            if isinstance(step.shown, str):
                self._name_state(step.shown, shown, index)

    def _name_state(self, name: str, states: str, index: int) -> None:
        self.indexes[name] = states, 0, index
        shape = self.values.shapes[name]
        is_plain = shape == self.values.shapes[states][1:]
        found = self.at(states, 0, index, name if is_plain else "")
        if not is_plain:
            self.shaped(found, shape, name)
        self.replaced.add(name)

    def _with_zeros(self, states: str, mask: str) -> str:
        """The states of all steps, with zeros in the rows that keep theirs."""
        kind, self.kind = self.kind, onnx.TensorProto.BOOL
        rows = self.shaped(mask, [*self.values.shapes[mask], 1])
        self.kind = kind
        zero = self.weight(np.zeros((), self.type()))
        return self.add("Where", [rows, states, zero], self.values.shapes[states])

    def _states(self, places: Sequence[Place | None], batch: int) -> str:
        """(directions, batch, units); empty for zeros."""
        if places[0] is None:
            return ""
        names = [self.named(place) for place in places if place is not None]
        return self.joined([self.shaped(name, [1, batch, self.values.shapes[name][-1]]) for name in names], 0)

    def _operands(self, chains: Sequence[Chain]) -> list[str] | None:
        """The names of W, R and B, gates in ONNX's order; None where they would be larger than the file."""
        key = tuple((chain.cell.key, chain.state, chain.inputs) for chain in chains)
        if key in self._weights:
            return self._weights[key]
        matrices = [entry for chain in chains for each in (chain.state, *chain.inputs) for entry in each if entry]
        size = sum(self.values.array(matrix).nbytes for matrix, _ in matrices)
        if size > self.bytes_left:
            return None
        self.bytes_left -= size
        made = [
            np.stack([np.hstack([self._matrix(each) for each in chain.inputs]) for chain in chains]),
            np.stack([self._matrix(chain.state) for chain in chains]),
            np.stack([self._bias(chain) for chain in chains]),
        ]
        self._weights[key] = [self.weight(each) for each in made]
        return self._weights[key]

    def _matrix(self, entries: Entries) -> Array:
        """(gates * units, width)."""
        matrices = [None if entry is None else self.values.array(entry[0]).T * entry[1] for entry in entries]
        zeros = np.zeros_like(next(each for each in matrices if each is not None))
        return np.vstack([zeros if each is None else each for each in matrices])

    def _bias(self, chain: Chain) -> Array:
        """(2 * gates * units): all that is added outside of the reset, and the bias inside it."""
        units = self._size(chain)[1]
        made = np.zeros((2, len(chain.state), units), self.type())
        for at, gate in enumerate(chain.cell.gates):
            made[0, at] = bias_of(self.values, gate.bias) if gate else 0
        if chain.cell.cell == GRU:
            made[1, _HIDDEN] = bias_of(self.values, chain.cell.inside)
        return made.reshape(-1)

    def _peepholes(self, chains: Sequence[Chain]) -> str:
        """(directions, 3 * units); empty for none."""
        if not any(gate and gate.peepholes for chain in chains for gate in chain.cell.gates):
            return ""
        made = np.zeros((len(chains), len(_PEEPHOLES), self._size(chains[0])[1]), self.type())
        for at, chain in enumerate(chains):
            for gate in _PEEPHOLES:
                peepholes = getattr(chain.cell.gates[gate], "peepholes", {})
                for vector, factor in peepholes.values():
                    made[at, gate] = bias_of(self.values, {vector: factor})
        return self.weight(made.reshape(len(chains), -1))

    # ---- the graph

    def write(self) -> None:
        """Write the nodes, weights and types into the graph."""
        if not self.replaced:
            return
        nodes = [node for node in self.values.nodes if not self.replaced & {*node.output}]
        nodes = self._with_stacks(nodes)
        kept = in_order(_needed(self._graph, [*nodes, *self.made]))
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del self._graph.node[:]
        self._graph.node.extend(copies)
        self._graph.initializer.extend(self.tensors)
        self._graph.value_info.extend(self.types)

    def _with_stacks(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes but those that join the states of all steps, which are joined already."""
        left, turned = [], dict[str, tuple[onnx.NodeProto, str]]()
        for node in nodes:
            self.near, self.kind = node, self.values.kinds.get(node.output[0], 0)
            found = self._all_states(node) if operator_of(node) == "Concat" else None
            span = self.values.spans.get(node.output[0])
            if found is not None:
                states, is_turned = found
                if is_turned:
                    turned[node.output[0]] = node, states
                self.join(node, self._backwards(states) if is_turned else states, node.output[0])
            elif span is not None and span.source in turned and self._turns(node, span, turned[span.source][0]):
                self.join(*turned[span.source], node.output[0])
            else:
                left.append(node)
        return left

    def _all_states(self, node: onnx.NodeProto) -> tuple[str, bool] | None:
        """The states of all steps that the node joins, and whether the last one is the first."""
        found = [self.indexes.get(self.values.place(name)) for name in node.input]
        if not found or found[0] is None:
            return None
        states = found[0][0]
        whole = [(states, 0, index) for index in range(self.values.shapes[states][0])]
        shape = self.values.shapes[node.input[0]]
        alike = all(self.values.shapes[name] == shape for name in node.input)
        if not alike or self.rows_before(node) not in (1, self.values.shapes[states][1]):
            return None
        return (states, found != whole) if found in (whole, whole[::-1]) else None

    def _backwards(self, states: str) -> str:
        bounds = [self.whole_numbers([number]) for number in (-1, _BEFORE_ALL, 0, -1)]
        return self.add("Slice", [states, *bounds], self.values.shapes[states])

    def _turns(self, node: onnx.NodeProto, span: Span, joined: onnx.NodeProto) -> bool:
        """Whether the node turns all that another one joined."""
        axis = next(each.i for each in joined.attribute if each.name == "axis")
        whole = self.values.shapes[joined.output[0]]
        own = self.values.shapes[node.output[0]] == whole and whole[axis] == len(joined.input)
        return own and (span.axis, span.start, span.step) == (axis % len(whole), len(joined.input) - 1, -1)


def _attributes(chains: Sequence[Chain], units: int) -> list[onnx.AttributeProto]:
    functions = [function for chain in chains for function in _functions(chain.cell)]
    cell = chains[0].cell
    attributes: dict[str, Any] = {
        "activations": [ACTIVATION_NAMES[function.name] for function in functions],
        "activation_alpha": [each.alpha for each in functions if "alpha" in ACTIVATIONS[ACTIVATION_NAMES[each.name]]],
        "activation_beta": [each.beta for each in functions if "beta" in ACTIVATIONS[ACTIVATION_NAMES[each.name]]],
        "hidden_size": units,
        "input_forget": int(cell.couples_forget) if cell.cell == LSTM else 0,
        "linear_before_reset": int(bool(cell.resets_product)),
    }
    return [helper.make_attribute(name, value) for name, value in attributes.items() if value]


def _functions(cell: Step) -> list[Activation]:
    """A cell's activations in ONNX's order."""
    gates = dict.fromkeys((0, len(cell.gates) - 1))
    return [*(gate.function for at in gates if (gate := cell.gates[at])), *filter(None, [cell.out_function])]


def _without_repeats(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that the results follow from, in order. Of several that compute the same of the same, the first makes
    what the readers of all read: a loop may carry one state under several names.
    """
    same = {tensor.name: _contents(tensor) for tensor in graph.initializer if math.prod(tensor.dims) <= _SMALL}
    first = dict[Any, onnx.NodeProto]()
    names = dict[str, str]()
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        if operator_of(node) in SHARED:
            attributes = sorted(each.SerializeToString() for each in node.attribute)
            key = operator_of(node), len(node.output), *(same.get(name, name) for name in node.input), *attributes
            known = first.setdefault(key, node)
            names.update(zip(node.output, known.output, strict=True) if known is not node else ())
    return _needed(graph, graph.node)


def _contents(tensor: onnx.TensorProto) -> bytes:
    nameless = onnx.TensorProto()
    nameless.CopyFrom(tensor)
    nameless.ClearField("name")
    return nameless.SerializeToString()


def _needed(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes that the results of the graph follow from."""
    return [nodes[at] for at in needed_for((value.name for value in graph.output), nodes)]
