"""Reductions of whole numbers and of truth values, and over no axis. TVM's own results have other types or numbers
there, or no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, as_type, dtype_of, shape_of


def _extreme(node: OnnxNode) -> Any:
    """Truth values are reduced as bytes."""
    if dtype_of(node.input(0)) != "bool":
        return node.by_tvm()
    return relax.op.astype(_reduced_as(node, "int8"), "bool")


def _mean(node: OnnxNode) -> Any:
    """Of whole numbers an exact sum, whose quotient is truncated. TVM divides a sum of 32 bits by an int64."""
    dtype = dtype_of(node.input(0))
    if "float" in dtype or dtype == "int64":
        return node.by_tvm()
    if dtype == "uint64":
        raise node.refused("it averages uint64, which no kernel does; cast it to int64 before")
    return relax.op.astype(_reduced_as(node, "int64"), dtype)


def _norm(node: OnnxNode) -> Any:
    """Of whole numbers the truncated root, and the largest number of the type where the root is larger."""
    dtype = dtype_of(node.input(0))
    if "float" in dtype:
        return node.by_tvm()
    most = float(np.iinfo(dtype).max)
    fitting = most if int(most) <= np.iinfo(dtype).max else np.nextafter(most, 0)
    norm = node.emit(relax.op.minimum(_reduced_as(node, "float64"), relax.const(fitting, "float64")))
    return relax.op.astype(norm, dtype)


def _unreduced(convert: Converter) -> Converter:
    """Where no axis is asked for, each number is reduced alone: TVM's converter returns the numbers as they are."""

    def converted(node: OnnxNode) -> Any:
        axes = node.constant(1)
        is_without = node.optional(1) is None or (axes is not None and axes.size == 0)
        if not (is_without and node.attributes.get("noop_with_empty_axes", 0)):
            return convert(node)
        alone = node.emit(relax.op.expand_dims(node.input(0), 0))
        inputs = onnx_frontend.onnx_input([alone, relax.const(np.array([0]), "int64")])
        return convert(replace(node, inputs=inputs, attributes={"keepdims": 0}))

    return converted


def _reduced_as(node: OnnxNode, dtype: str) -> Any:
    """The node's result for its numbers in another type."""
    numbers = node.emit(as_type(dtype, node.input(0)))
    return node.emit(replace(node, inputs=onnx_frontend.onnx_input([numbers, *node.inputs[1:]])).by_tvm())


def _place(find: Any) -> Converter:
    """With the last of equal numbers where the node asks for it; 0 beside NaN, as in ONNX Runtime."""

    def converted(node: OnnxNode) -> Any:
        x, attributes = node.input(0), node.attributes
        if not attributes.get("select_last_index", 0):
            return node.by_tvm()
        axis = int(attributes.get("axis", 0)) % len(shape_of(x))
        indices = np.arange(shape_of(x)[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape_of(x)))])
        is_found = node.emit(relax.op.equal(x, node.emit(find(x, axis, keepdims=True))))
        places = node.emit(relax.op.where(is_found, relax.const(indices, "int64"), relax.const(0, "int64")))
        return relax.op.max(places, axis, keepdims=bool(attributes.get("keepdims", 1)))

    return converted


REDUCTIONS: Mapping[str, Converter] = {
    "ArgMax": _place(relax.op.max),
    "ArgMin": _place(relax.op.min),
    "ReduceL1": _unreduced(OnnxNode.by_tvm),
    "ReduceL2": _unreduced(_norm),
    "ReduceLogSum": _unreduced(OnnxNode.by_tvm),
    "ReduceMax": _extreme,
    "ReduceMean": _mean,
    "ReduceMin": _extreme,
    "ReduceSumSquare": _unreduced(OnnxNode.by_tvm),
}
"""by ONNX's names"""
