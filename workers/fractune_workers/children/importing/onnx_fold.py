"""Fold the shape arithmetic of an ONNX graph whose inputs are all fixed.

`onnxslim` folds most of it, but stops at chains such as Shape -> Slice -> Cast -> Concat -> Reshape in
which one link is a `ConstantOfShape` or a `Cast`. TVM's importer then sees a computed shape and gives up.
Here every small node over constants is run by ONNX's own reference implementation, and shapes are inferred
again with what came out, until nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

_LARGEST = 65_536
"""Elements of a constant that still is shape arithmetic; larger ones are weights and stay as they are"""
_ROUNDS = 16
_UNREPEATABLE = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"})

Array = npt.NDArray[np.generic]


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its shape arithmetic replaced by constants. Raises what ONNX's reference raises."""
    for _ in range(_ROUNDS):
        model = shape_inference.infer_shapes(model, data_prop=True)
        if not _fold_once(model):
            break
    return model


def _fold_once(model: onnx.ModelProto) -> bool:
    graph = model.graph
    shapes = _known_shapes(graph)
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer if math.prod(t.dims) <= _LARGEST}
    known = set(constants)
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        values = _values(model, node, constants, shapes)
        if values is None:
            kept.extend(_taken_branch(node, constants, graph))
        else:
            constants.update(zip(node.output, values, strict=True))
    if len(kept) == len(graph.node) and all(a is b for a, b in zip(kept, graph.node, strict=True)):
        return False
    used = {name for node in kept for name in _names_read(node)} | {value.name for value in graph.output}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(nodes)
    fresh = sorted((used & set(constants)) - known)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(constants[name]), name) for name in fresh)
    return True


def _known_shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Tensors whose every dimension is fixed. An inferred 0 counts too: it is an empty tensor."""
    shapes: dict[str, list[int]] = {t.name: list(t.dims) for t in graph.initializer}
    for value in [*graph.input, *graph.value_info]:
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = [dim.dim_value for dim in tensor.shape.dim]
    return shapes


def _values(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    constants: Mapping[str, Array],
    shapes: Mapping[str, list[int]],
) -> list[Array] | None:
    """What the node gives when that follows from constants and shapes alone, else None."""
    if node.domain not in {"", "ai.onnx"} or node.op_type in _UNREPEATABLE or _has_subgraph(node):
        return None
    if node.op_type == "Shape" and node.input[0] in shapes:
        return [_shape_slice(node, shapes[node.input[0]])]
    if any(name and name not in constants for name in node.input) or "" in node.output:
        return None
    if any(math.prod(shapes.get(name, [0])) > _LARGEST for name in node.output):
        return None
    if node.op_type == "ConstantOfShape" and math.prod(map(int, constants[node.input[0]])) > _LARGEST:
        return None
    values = [np.asarray(value) for value in _evaluate(model, node, constants)]
    return values if all(value.size <= _LARGEST for value in values) else None


def _shape_slice(node: onnx.NodeProto, shape: list[int]) -> Array:
    bounds = {a.name: a.i for a in node.attribute}
    return np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], dtype=np.int64)


def _evaluate(model: onnx.ModelProto, node: onnx.NodeProto, constants: Mapping[str, Array]) -> Iterable[Array]:
    names = sorted({name for name in node.input if name})
    anything = onnx.TypeProto()
    graph = onnx.helper.make_graph(
        [node],
        "node",
        [onnx.helper.make_value_info(name, anything) for name in names],
        [onnx.helper.make_value_info(name, anything) for name in node.output],
    )
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return list(ReferenceEvaluator(alone).run(None, {name: constants[name] for name in names}))


def _has_subgraph(node: onnx.NodeProto) -> bool:
    return any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)


def _taken_branch(node: onnx.NodeProto, constants: Mapping[str, Array], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of the branch that an `If` with a constant condition takes; any other node as it is."""
    if node.op_type != "If" or node.input[0] not in constants:
        return [node]
    name = "then_branch" if bool(constants[node.input[0]].item()) else "else_branch"
    branch = next(a.g for a in node.attribute if a.name == name)
    graph.initializer.extend(branch.initializer)
    handed_out = [
        onnx.helper.make_node("Identity", [inner.name], [outer])
        for inner, outer in zip(branch.output, node.output, strict=True)
    ]
    return [*branch.node, *handed_out]


def _names_read(node: onnx.NodeProto) -> set[str]:
    """Everything that the node may read, inside its subgraphs too."""
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _names_read(inner)
        names |= {value.name for value in attribute.g.output}
    return names
