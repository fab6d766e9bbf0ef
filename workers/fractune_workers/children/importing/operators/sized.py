"""Operators with sizes and places that are constants. TVM's converters also take constants that do not fit the input,
and some make numbers from memory that holds none.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, tirx

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.onnx_node import (
    Converter,
    OnnxNode,
    as_type,
    dtype_of,
    is_empty,
    shape_of,
)

# Operators that read or write at indices. Constant indices are checked here. Kernels check computed ones
# (`rewriting/indexing.py`).

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


# Reductions of whole numbers and of truth values, and over no axis. TVM's own results have other types or numbers
# there, or no kernel.


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
        given = node.with_inputs([alone, relax.const(np.array([0]), "int64")])
        return convert(replace(given, attributes={"keepdims": 0}))

    return converted


def _reduced_as(node: OnnxNode, dtype: str) -> Any:
    """The node's result for its numbers in another type."""
    numbers = node.emit(as_type(dtype, node.input(0)))
    return node.emit(node.with_inputs([numbers, *node.inputs[1:]]).by_tvm())


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

_MOST_NUMBERS = 2**31
"""of a Range"""


def _top_k(node: OnnxNode) -> Any:
    x = node.input(0)
    if dtype_of(x).startswith("uint"):
        raise node.refused(f"it sorts {dtype_of(x)}, which no kernel does; cast it to int32 before")
    given = node.constant(1)
    if given is None and node.optional(1) is not None:
        return node.by_tvm()
    count = int(node.attributes.get("k", 1) if given is None else given.reshape(-1)[0])
    shape, axis = shape_of(x), int(node.attributes.get("axis", -1))
    if not 1 <= count <= shape[axis]:
        raise node.refused(f"k={count} of axis {axis} of {shape}; export it with a k from 1 to {shape[axis]}")
    return node.by_tvm()


def _split(node: OnnxNode) -> Any:
    """The sizes of all parts together are the axis: TVM's converter does not look at the last size."""
    shape, axis, parts = shape_of(node.input(0)), int(node.attributes.get("axis", 0)), len(node.proto.output)
    given = node.constant(1)
    if given is None and node.optional(1) is not None:
        return node.by_tvm()
    stated = node.attributes.get("split") if given is None else given.reshape(-1)
    sizes = _even(shape[axis], parts) if stated is None else [int(size) for size in stated]
    where = f"of axis {axis} of {shape}"
    if len(sizes) != parts or sum(sizes) != shape[axis]:
        raise node.refused(f"its sizes {sizes} are not {parts} parts {where}; export the model again")
    if min(sizes) < 0:
        raise node.refused(f"its sizes {sizes} have a part {where} below 0; export the model again")
    if min(sizes) > 0:
        return node.by_tvm()
    ends = list(itertools.accumulate(sizes))
    bounds = zip(ends, sizes, strict=True)
    return [relax.op.strided_slice(node.input(0), [axis], [end - size], [end]) for end, size in bounds]


def _concat(node: OnnxNode) -> Any:
    """Of its inputs that are not empty, unless all are."""
    kept = [each for each in node.inputs if not is_empty(each)]
    return (node.with_inputs(kept) if kept else node).by_tvm()


def _even(size: int, parts: int) -> list[int]:
    """The sizes of a split that states none: the last part may be smaller."""
    largest = -(-size // parts)
    return [*[largest] * (parts - 1), size - largest * (parts - 1)]


def _pad(node: OnnxNode) -> Any:
    """Negative numbers crop; what is left is padded. TVM repeats numbers that were cropped."""
    pads, axes, shape = node.constant(1), node.constant(3), shape_of(node.input(0))
    if pads is None or (axes is None and node.optional(3) is not None):
        return node.by_tvm()
    mode = text_of(node.attributes.get("mode", "constant"))
    before, after = _by_axis(pads, range(len(shape)) if axes is None else axes.tolist(), len(shape))
    kept = [size + min(0, less) + min(0, more) for size, less, more in zip(shape, before, after, strict=True)]
    made = [size + less + more for size, less, more in zip(shape, before, after, strict=True)]
    if min(made if mode == "constant" else kept, default=1) < 1:
        raise node.refused(f"its pads {before + after} leave nothing of {shape}; export it with smaller crops")
    if mode == "reflect":
        _check_reflection(node, kept, before, after)
    if mode == "constant" or kept == shape:
        return node.by_tvm()
    begins = [max(0, -less) for less in before]
    ends = [begin + size for begin, size in zip(begins, kept, strict=True)]
    cropped = node.emit(relax.op.strided_slice(node.input(0), list(range(len(shape))), begins, ends))
    added = relax.const(np.maximum(before + after, 0), "int64")
    return node.with_inputs([cropped, added, *node.inputs[2:3]]).by_tvm()


def _by_axis(pads: np.ndarray[Any, Any], axes: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """The numbers to add before and after each axis."""
    before, after = [0] * rank, [0] * rank
    for axis, less, more in zip(axes, *np.split(pads.reshape(-1), 2), strict=True):
        before[axis], after[axis] = int(less), int(more)
    return before, after


def _check_reflection(node: OnnxNode, kept: list[int], before: list[int], after: list[int]) -> None:
    for axis, (size, *added) in enumerate(zip(kept, before, after, strict=True)):
        if max(added) >= size:
            raise node.refused(
                f"it reflects {max(added)} numbers into axis {axis}, which has {size}; pad it with {size - 1} at most"
            )


def _tile(node: OnnxNode) -> Any:
    repeats = node.constant(1)
    if repeats is not None and repeats.size and repeats.min() < 0:
        raise node.refused(f"it repeats an axis {repeats.min()} times; export it with repeats of 1 or more")
    return node.by_tvm()


def _trilu(node: OnnxNode) -> Any:
    """A diagonal beyond the corners is as one just beyond them; TVM's kernel takes 32 bits."""
    diagonal = node.constant(1)
    if diagonal is None:
        return node.by_tvm()
    rows, columns = shape_of(node.input(0))[-2:]
    within = relax.const(np.clip(diagonal, -rows, columns))
    return node.with_inputs([node.input(0), within]).by_tvm()


def _range(node: OnnxNode) -> Any:
    given = [node.constant(index) for index in range(3)]
    start, limit, step = [None if each is None else each.reshape(-1)[0].item() for each in given]
    if start is not None and limit is not None and step is not None:
        count = (limit - start) / step if step else math.nan
        if not math.isfinite(count) or count > _MOST_NUMBERS:
            raise node.refused(
                f"no list has the numbers from {start:g} to {limit:g} by {step:g}; export it with finite bounds and a "
                "step that is not 0"
            )
    return node.by_tvm()


SIZED: Mapping[str, Converter] = {
    "Concat": _concat,
    "Pad": _pad,
    "Range": _range,
    "Split": _split,
    "Tile": _tile,
    "TopK": _top_k,
    "Trilu": _trilu,
}
"""by ONNX's names"""
