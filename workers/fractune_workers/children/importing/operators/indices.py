"""Operators that read or write at indices. Constant indices are checked here. Kernels check computed ones
(`rewriting/indexing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, as_type, shape_of

_INDICES, _UPDATES = 1, 2
_OPEN = -1
"""a size that is known only when the model runs"""


def _gather(node: OnnxNode) -> Any:
    data, axis = node.input(0), int(node.attributes.get("axis", 0))
    _check(node, len(data.values) if isinstance(data, relax.ShapeExpr) else _sizes(data)[axis])
    return node.by_tvm()


def _gather_elements(node: OnnxNode) -> Any:
    _check_elements(node)
    return node.by_tvm()


def _scatter_elements(node: OnnxNode) -> Any:
    """TVM's kernel takes positions in the indices for positions in the data, so other axes must be as long. Where they
    are not, each index becomes all coordinates of its element.
    """
    data, indices, axis = _check_elements(node)
    updates = _sizes(node.input(_UPDATES))
    if updates != indices and _OPEN not in (*updates, *indices):
        raise node.refused(f"its updates have the shape {updates}, its indices {indices}; export the model again")
    if [*data[:axis], *data[axis + 1 :]] == [*indices[:axis], *indices[axis + 1 :]]:
        return node.by_tvm()
    coordinates = [relax.const(each.reshape(-1, 1), "int64") for each in np.indices(indices)]
    places = node.emit(relax.op.reshape(node.builder.normalize(as_type("int64", node.input(_INDICES))), [-1, 1]))
    last = node.emit(relax.op.add(places, relax.const(data[axis], "int64")))
    coordinates[axis] = node.emit(relax.op.where(relax.op.less(places, relax.const(0, "int64")), last, places))
    flat = node.emit(relax.op.reshape(node.input(_UPDATES), [-1]))
    reduction = text_of(node.attributes.get("reduction", b"none")).replace("none", "update")
    return relax.op.scatter_nd(node.input(0), node.emit(relax.op.concat(coordinates, axis=1)), flat, reduction)


def _check_elements(node: OnnxNode) -> tuple[list[int], list[int], int]:
    """The shapes of the data and of the indices, which have the same axes, and the axis whose coordinates the indices
    are. Raises BadModel where the shapes do not fit.
    """
    data, indices = _sizes(node.input(0)), _sizes(node.input(_INDICES))
    axis = int(node.attributes.get("axis", 0)) % len(data)
    _check(node, data[axis])
    others = [(most, count) for at, (most, count) in enumerate(zip(data, indices, strict=True)) if at != axis]
    if any(0 <= most < count for most, count in others):
        raise node.refused(f"its indices have the shape {indices}, its data {data}; export the model again")
    return data, indices, axis


def _by_coordinates(node: OnnxNode) -> Any:
    """GatherND and ScatterND: the last axis of the indices has a coordinate for each axis of the data."""
    first = int(node.attributes.get("batch_dims", 0))
    _check(node, _sizes(node.input(0))[first : first + _sizes(node.input(_INDICES))[-1]])
    return node.by_tvm()


def _sizes(value: relax.Expr) -> list[int]:
    return [int(dim) if isinstance(dim, tirx.IntImm) else _OPEN for dim in value.ty.shape]


def _check(node: OnnxNode, extents: int | Sequence[int]) -> None:
    """Raises BadModel for a constant index outside of the data. `extents`: one, or one for each place on the indices'
    last axis.
    """
    indices = node.constant(_INDICES)
    if indices is None:
        return
    limits = np.broadcast_to(np.array(extents), indices.shape)
    outside = (limits != _OPEN) & ((indices < -limits) | (indices >= limits))
    if outside.any():
        index, extent = indices[outside][0], limits[outside][0]
        raise node.refused(f"its constant index {index} is outside of an axis of {extent}; export the model again")


def _reverse_sequence(node: OnnxNode) -> relax.Expr:
    """The first steps of each sequence backwards, the others as they are. Computed lengths are clamped, as those of
    recurrent operators.
    """
    x, constant = node.input(0), node.constant(_INDICES)
    time, batch = (int(node.attributes.get(name, default)) for name, default in (("time_axis", 0), ("batch_axis", 1)))
    shape = shape_of(x)
    wrong = [] if constant is None else constant[(constant < 0) | (constant > shape[time])].tolist()
    if wrong:
        raise node.refused(f"its constant length {wrong[0]} is outside of {shape[time]} steps; export it again")

    def along(axis: int) -> list[int]:
        return [-1 if each == axis else 1 for each in range(len(shape))]

    most, one = (relax.const(number, "int64") for number in (shape[time], 1))
    steps = relax.const(np.arange(shape[time]).reshape(along(time)), "int64")
    lengths = node.emit(relax.op.minimum(node.emit(as_type("int64", node.input(_INDICES))), most))
    ends = node.emit(relax.op.reshape(lengths, [shape[batch] if size < 0 else 1 for size in along(batch)]))
    back = node.emit(relax.op.subtract(node.emit(relax.op.subtract(ends, one)), steps))
    places = node.emit(relax.op.where(relax.op.less(steps, ends), back, steps))
    return relax.op.gather_elements(x, node.emit(relax.op.broadcast_to(places, shape)), axis=time)


INDEXED: Mapping[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _by_coordinates,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _by_coordinates,
}
"""by ONNX's names"""
