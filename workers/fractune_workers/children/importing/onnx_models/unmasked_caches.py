"""Decoders whose attention reads all rows of a cache, because the file's past has no other rows.

Optimum's decoders for translation and speech (Marian, BART, T5, Whisper) take no mask of their own tokens. A session
keeps the rows in use at the end of a bucket's past (`fractune_runtime/decoder.py`). So the rows before them must be
hidden, and a position must be counted from the first row in use. Here the graph gets both, by the number of rows that
are not in use (`operators/whole_attention.py`), which is 0 in the model of the file:

- a low number is added to the scores of these rows before each softmax over the rows of a cache;
- a position that follows from the length of the past is made smaller by it where it looks up a table of weights.

A causal mask and the distances of T5 stay: they compare two rows, and both are counted from the first. Which numbers
these are shows where the graph is folded for two lengths of the past. A graph with others is left as it is, and then it
has no session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fractune_core.files.manifests import MASK
from fractune_workers.children.importing import onnx_graph
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.onnx_fold import Folding
from fractune_workers.children.importing.operators.whole_attention import DOMAIN, UNUSED_ROWS

_FIRST_OPSET = 13
"""From here on a softmax is over one axis."""
_RANK, _ROWS_AXIS, _PARTS = 4, 2, 2
_LOW: dict[int, float] = {TensorProto.FLOAT: -1e30, TensorProto.FLOAT16: -6e4, TensorProto.BFLOAT16: -1e30}
"""by type: what hides a score, also where a mask of the file does so already"""
_MOVES = frozenset(["Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"])
"""Operators that give their first operand's numbers"""
_SCALES = frozenset(["Add", "Cast", "Div", "Identity", "IsNaN", "Mul", "Reshape", "Sub", "Tanh", "Where"])
"""between scores and a softmax, or between a softmax and a product"""
_SHAPES = {"Expand": (1,), "Pad": (1, 3), "Reshape": (1,), "Slice": (1, 2), "Split": (1,), "Tile": (1,), "Trilu": (1,)}
"""by operator: its operands that are sizes"""
_AXES = 3
"""the operand of a Slice"""
_FEWER = 5
"""rows of a past, to see what changes with one more"""
_IR_VERSION = 8


_log = logging.getLogger(__name__)


class _Other(Exception):
    """A graph of another kind."""


def hide_unused_rows(model: onnx.ModelProto, limits: Limits) -> None:
    """Change the graph of such a decoder, in place. Its inputs have fixed shapes."""
    names = {value.name for value in model.graph.input}
    if onnx_graph.opset_of(model) < _FIRST_OPSET or names & set(MASK):
        return
    try:
        graph = _Graph(model.graph, list(model.opset_import))
        caches = _caches(graph)
        if caches:
            _Hiding(graph, caches, _Positions(graph, caches, limits)).change(model)
    except _Other:
        _log.info("the rows of a cache that are not in use cannot be hidden")


@dataclass
class _Graph:
    """A graph with the taken branch of each `If` that a constant decides."""

    proto: onnx.GraphProto
    opsets: list[Any]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    """of branches"""

    def __post_init__(self) -> None:
        self.known = {tensor.name: tensor for tensor in self.proto.initializer}
        self.nodes = [*onnx_graph.in_order([each for node in self.proto.node for each in self._taken(node)])]
        self.inputs = {value.name: value for value in onnx_graph.inputs_of(self.proto)}
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in onnx_graph.names_read(node):
                self.readers.setdefault(name, []).append(node)
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.known[node.output[0]] = node.attribute[0].t

    def _taken(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        condition = self.known.get(node.input[0]) if node.op_type == "If" else None
        if condition is None:
            yield node
            return
        name = "then_branch" if numpy_helper.to_array(condition).all() else "else_branch"
        branch = next(each.g for each in node.attribute if each.name == name)
        self.weights.extend(branch.initializer)
        self.known.update({tensor.name: tensor for tensor in branch.initializer})
        yield from branch.node
        for inner, outer in zip(branch.output, node.output, strict=True):
            if inner.name != outer:
                yield helper.make_node("Identity", [inner.name], [outer])


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), default)


def _caches(graph: _Graph) -> dict[str, str]:
    """The past of each cache, by what it is with new rows behind it, which is an output."""
    results = {value.name for value in graph.proto.output}
    found = {}
    for node in graph.nodes:
        if node.op_type != "Concat" or len(node.input) != _PARTS or node.input[0] not in graph.inputs:
            continue
        kind = graph.inputs[node.input[0]].type.tensor_type
        is_rows = len(kind.shape.dim) == _RANK and _attribute(node, "axis", 0) in (_ROWS_AXIS, _ROWS_AXIS - _RANK)
        named, waiting = set[str](), [node.output[0]]
        while waiting:
            name = waiting.pop()
            named.add(name)
            waiting += [each.output[0] for each in graph.readers.get(name, ()) if each.op_type == "Identity"]
        if is_rows and kind.elem_type in _LOW and named & results:
            found[node.output[0]] = node.input[0]
    return found


class _Hiding:
    def __init__(self, graph: _Graph, caches: dict[str, str], positions: _Positions) -> None:
        self._graph, self._caches, self._positions = graph, caches, positions
        self._scores: dict[str, int] = {}
        """the types of scores, by name"""
        self._softmaxes: list[onnx.NodeProto] = []
        self._new: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._masks: dict[tuple[str, int], str] = {}
        self._unused: dict[int, str] = {}
        """by type"""

    def change(self, model: onnx.ModelProto) -> None:
        """Raises _Other, and then nothing is changed."""
        self._find_softmaxes()
        self._positions.find()
        before = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self._graph.nodes]
        own = {node.SerializeToString() for node in self._softmaxes}
        for old, node in zip(self._graph.nodes, before, strict=True):
            if old.SerializeToString() in own:
                self._mask(node, before)
            self._count_from_used(node, old)
        del model.graph.node[:]
        model.graph.node.extend([*before, *self._new])
        model.graph.initializer.extend([*self._graph.weights, *self._constants])
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))

    # Attention over caches.

    def _find_softmaxes(self) -> None:
        """Raises _Other for a cache that another operator than attention reads."""
        others = []
        for present, past in self._caches.items():
            kind = self._graph.inputs[past].type.tensor_type.elem_type
            for product, name in self._products(present):
                if not self._reaches_softmax(product.output[0], kind):
                    others.append((product, name))
        for product, name in others:
            weights = next((each for each in product.input if each != name), "")
            if not self._is_from_softmax(weights):
                raise _Other

    def _readers(self, name: str) -> list[onnx.NodeProto]:
        found = self._graph.readers.get(name, [])
        if any(onnx_graph.subgraphs(node) for node in found):
            raise _Other
        return [node for node in found if node.op_type != "Shape"]

    def _products(self, present: str) -> Iterator[tuple[onnx.NodeProto, str]]:
        """The products with a cache, and the name of its operand."""
        waiting = [present]
        while waiting:
            name = waiting.pop()
            for node in self._readers(name):
                is_scaled = node.op_type in ("Mul", "Div") and any(map(self._positions.is_number, node.input))
                if (node.op_type in _MOVES and node.input[0] == name) or is_scaled:
                    waiting.append(node.output[0])
                elif node.op_type == "MatMul":
                    yield node, name
                else:
                    raise _Other

    def _reaches_softmax(self, name: str, kind: int) -> bool:
        """Whether a product's results are scores. Then they are known, and all of them reach a softmax."""
        waiting, scores, found = [(name, kind)], dict[str, int](), list[onnx.NodeProto]()
        others = False
        while waiting:
            name, kind = waiting.pop()
            scores[name] = kind
            for node in self._readers(name):
                if node.op_type == "Softmax" and _attribute(node, "axis", -1) in (-1, _RANK - 1):
                    found.append(node)
                elif node.op_type in _SCALES:
                    waiting.append((node.output[0], _attribute(node, "to", 0) if node.op_type == "Cast" else kind))
                else:
                    others = True
        if not found:
            return False
        if others or any(each not in _LOW for each in scores.values()):
            raise _Other
        self._scores.update(scores)
        self._softmaxes += [each for each in found if each not in self._softmaxes]
        return True

    def _is_from_softmax(self, name: str) -> bool:
        while (node := self._graph.makers.get(name)) is not None and node not in self._softmaxes:
            if node.op_type not in _SCALES:
                return False
            name = node.input[-1 if node.op_type == "Where" else 0]
        return node is not None

    def _mask(self, softmax: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
        """Add what hides rows: to a mask of the file where there is one, which stays apart from the scores."""
        scores = softmax.input[0]
        added = next((node for node in nodes if scores in node.output and node.op_type == "Add"), None)
        at = next((at for at, each in enumerate(added.input) if each not in self._scores), None) if added else None
        kind = self._scores[scores]
        if added is None or at is None:
            softmax.input[0] = self._node("Add", softmax, scores, self._hidden(kind, softmax))
            return
        if self._masks.get((added.input[at], -1)) != added.input[at]:
            key = added.input[at], kind
            if key not in self._masks:
                self._masks[key] = self._node("Add", softmax, added.input[at], self._hidden(kind, softmax))
                self._masks[self._masks[key], -1] = self._masks[key]
            added.input[at] = self._masks[key]

    def _hidden(self, kind: int, of: onnx.NodeProto) -> str:
        """A low number for each row that is not in use, and 0 for others."""
        if ("", kind) not in self._masks:
            shape = self._node("Shape", of, next(iter(self._caches)))
            rows = self._node("Gather", of, shape, self._constant(_ROWS_AXIS))
            numbers = self._node("Range", of, self._constant(0), rows, self._constant(1))
            are_hidden = self._node("Less", of, numbers, self._unused_rows(TensorProto.INT64, of))
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            low, zero = (self._constant(each, dtype) for each in (_LOW[kind], 0))
            self._masks["", kind] = self._node("Where", of, are_hidden, low, zero)
        return self._masks["", kind]

    # Positions.

    def _count_from_used(self, node: onnx.NodeProto, old: onnx.NodeProto) -> None:
        if kind := self._positions.counted.get(id(old)):
            node.input[1] = self._node("Sub", node, node.input[1], self._unused_rows(kind, node))
        elif (axis := self._positions.slices.get(id(old))) is not None:
            begin, end = (self._node("Reshape", node, each, self._constant([])) for each in node.input[1:3])
            wide = [self._node("Cast", node, each, to=TensorProto.INT64) for each in (begin, end)]
            rows = self._node("Range", node, *wide, self._constant(1))
            counted = self._node("Sub", node, rows, self._unused_rows(TensorProto.INT64, node))
            node.CopyFrom(helper.make_node("Gather", [node.input[0], counted], node.output, node.name, axis=axis))

    def _unused_rows(self, kind: int, of: onnx.NodeProto) -> str:
        if kind not in self._unused:
            if kind == TensorProto.INT64:
                other = next((each for each in self._graph.inputs if each not in self._caches.values()), "")
                if not other:
                    raise _Other
                self._unused[kind] = self._node(UNUSED_ROWS, of, other, domain=DOMAIN)
            else:
                self._unused[kind] = self._node("Cast", of, self._unused_rows(TensorProto.INT64, of), to=kind)
        return self._unused[kind]

    def _node(self, operator: str, of: onnx.NodeProto, *operands: str, **attributes: Any) -> str:
        made = onnx_graph.name_of_part(of)
        self._new.append(helper.make_node(operator, list(operands), [made], made, **attributes))
        return made

    def _constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"fractune.unused_rows.{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name


class _Positions:
    """What follows from the length of the past: numbers of shape arithmetic, with a past of some rows and of one more.

    Tables of weights are no constants here, so that what looks up a table stays.
    """

    def __init__(self, graph: _Graph, caches: dict[str, str], limits: Limits) -> None:
        self._graph = graph
        self.tables = {name for name, each in graph.known.items() if each.data_type in _LOW and len(each.dims) > 1}
        for node in graph.nodes:
            if node.op_type == "Identity" and node.input[0] in self.tables:
                self.tables.add(node.output[0])
        self._fewer, self._more = (self._folded(model, limits, caches) for model in (_FEWER, _FEWER + 1))
        self.counted: dict[int, int] = {}
        """by a node that looks up a table by positions: their type"""
        self.slices: dict[int, int] = {}
        """by a node that takes the rows of positions from a table: the axis"""

    def _folded(self, rows: int, limits: Limits, caches: dict[str, str]) -> Folding:
        pasts, inputs = set(caches.values()), list[onnx.ValueInfoProto]()
        for value in self._graph.inputs.values():
            made = onnx.ValueInfoProto()
            made.CopyFrom(value)
            if value.name in pasts:
                made.type.tensor_type.shape.dim[_ROWS_AXIS].dim_value = rows
            inputs.append(made)
        weights = [*self._graph.proto.initializer, *self._graph.weights]
        tables = [each for each in weights if each.name in self.tables]
        inputs += [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in tables]
        others = [each for each in weights if each.name not in self.tables]
        graph = helper.make_graph(self._graph.nodes, "rows", inputs, self._graph.proto.output, others)
        model = helper.make_model(graph, opset_imports=self._graph.opsets, ir_version=_IR_VERSION)
        folding = Folding(model, limits)
        folding.run()
        return folding

    def is_number(self, name: str) -> bool:
        """Whether it is one number, which the past does not change."""
        found = self._fewer.numbers(name)
        return found is not None and found.size == 1 and self._is_equal(name)

    def _is_equal(self, name: str) -> bool:
        fewer, more = self._fewer.numbers(name), self._more.numbers(name)
        return fewer is more if fewer is None or more is None else np.array_equal(fewer, more)

    def find(self) -> None:
        """Raises _Other for an operator that reads other numbers than these."""
        for node in self._graph.nodes:
            if all(self._fewer.numbers(name) is not None for name in node.output if name):
                continue
            changed = [at for at, name in enumerate(node.input) if name and not self._is_equal(name)]
            if any(not self._is_equal(name) for name in onnx_graph.names_read(node) - set(node.input)):
                raise _Other
            if changed:
                self._take(node, changed)

    def _take(self, node: onnx.NodeProto, changed: Sequence[int]) -> None:
        is_table = node.input[0] in self.tables
        if node.op_type == "Slice" and is_table:
            axes = self._fewer.numbers(node.input[3]) if len(node.input) > _AXES else None
            is_whole = len(node.input) <= _AXES + 1 or self._fewer.numbers(node.input[4]) == [1]
            if axes is None or axes.size != 1 or not is_whole or not all(map(self._is_moved, node.input[1:3])):
                raise _Other
            self.slices[id(node)] = int(axes.item())
        elif node.op_type == "Gather" and is_table and changed == [1] and self._is_moved(node.input[1]):
            numbers = self._fewer.numbers(node.input[1])
            self.counted[id(node)] = helper.np_dtype_to_tensor_dtype(numbers.dtype) if numbers is not None else 0
        elif not all(at in _SHAPES.get(node.op_type, ()) or self._is_of_rows(node.input[at]) for at in changed):
            raise _Other

    def _is_moved(self, name: str) -> bool:
        """Whether each number is larger by one with one more row."""
        fewer, more = self._fewer.numbers(name), self._more.numbers(name)
        return fewer is not None and more is not None and fewer.dtype.kind == "i" and np.array_equal(fewer + 1, more)

    def _is_of_rows(self, name: str) -> bool:
        """Whether there is a number for each row, and the first of them is the one more."""
        fewer, more = self._fewer.numbers(name), self._more.numbers(name)
        if fewer is None or more is None or fewer.ndim != more.ndim:
            return False
        axes = [axis for axis in range(fewer.ndim) if fewer.shape[axis] != more.shape[axis]]
        if len(axes) != 1 or more.shape[axes[0]] != fewer.shape[axes[0]] + 1:
            return False
        return np.array_equal(np.delete(more, 0, axes[0]), fewer)
