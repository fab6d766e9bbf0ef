"""Inputs and weights moved by some roundings of their type: how far the outputs move is what rounding can do.

The results of functions such as the sigmoid are moved by some roundings of 1, however small they are: their usual
implementations are no better.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fractune_core.agreement import Precision
from fractune_workers.children.checking.references import Array, Feed
from fractune_workers.children.importing.onnx_graph import operator_of

_MOVE, _HALF_MOVE = 2.0**-16, 2.0**-10
"""part of a number by which it is moved: 256 roundings of a float32, and one or two of half precision"""
_MATRIX = 2
"""dimensions of the least weight that is moved: vectors may be sizes"""
_SATURATING = ("Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Tanh", "Erf", "Exp", "Softplus", "Sin", "Cos")
_SATURATING_MOVE = 2.0**-22
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def moved_inputs(feed: Feed, precision: Precision, seed: int) -> dict[str, Array]:
    """Floating-point inputs, moved by a part of themselves and of the largest of them: zeros would stay."""
    rng, part = np.random.default_rng(seed), _part(precision)
    return {name: _moved(array, part, rng) for name, array in feed.items()}


def _moved(array: Array, part: float, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f" or not array.size:
        return array
    limit = float(np.finfo(array.dtype).max)
    wide = array.astype("float64")
    finite = np.isfinite(wide)
    largest = float(np.abs(wide[finite]).max(initial=0.0)) or 1.0
    moves = part * (wide * rng.choice([-1, 1], wide.shape) + largest * rng.uniform(-1, 1, wide.shape))
    with np.errstate(invalid="ignore"):
        moved: Array = np.where(finite, np.clip(wide + moves, -limit, limit), wide).astype(array.dtype)
    return moved


def moved_weights(model: onnx.ModelProto, precision: Precision, seed: int) -> bytes:
    """The model with its matrices of weights, and the scales of quantized ones, moved by a part of themselves, and with
    the results of saturating functions moved.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rng, part = np.random.default_rng(seed), _part(precision)
    for tensor in _weights(copy.graph):
        array = numpy_helper.to_array(tensor)
        factors = 1 + part * rng.choice([-1, 1], array.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (array.astype("float64") * factors).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(moved), tensor.name))
    if not precision.half and not _has_doubles(copy.graph):
        _move_saturating(copy.graph, rng)
    return copy.SerializeToString()


def _has_doubles(graph: onnx.GraphProto) -> bool:
    kinds = {each.data_type for each in graph.initializer}
    kinds |= {each.type.tensor_type.elem_type for each in graph.input}
    casts = (each.i for node in graph.node if node.op_type == "Cast" for each in node.attribute)
    return onnx.TensorProto.DOUBLE in kinds | set(casts)


def _move_saturating(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    for place, node in reversed(list(enumerate(graph.node))):
        if operator_of(node) in _SATURATING:
            given, moved, amount = node.output[0], f"{node.output[0]}#moved", f"{node.output[0]}#by"
            node.output[0] = moved
            graph.node.insert(place + 1, helper.make_node("Add", [moved, amount], [given]))
            by = np.float32(_SATURATING_MOVE * rng.choice([-1, 1]))
            graph.initializer.append(numpy_helper.from_array(np.asarray(by), amount))


def _weights(graph: onnx.GraphProto) -> Iterator[Any]:
    scales = {node.input[1] for node in graph.node if operator_of(node) == "DequantizeLinear"}
    constants = [
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    for name, tensor in [*((each.name, each) for each in graph.initializer), *constants]:
        if tensor.data_type in _FLOATS and (len(tensor.dims) >= _MATRIX or name in scales):
            yield tensor


def _part(precision: Precision) -> float:
    return _HALF_MOVE if precision.half else _MOVE
