"""Operators with sizes and places that are constants. TVM's converters also take constants that do not fit the input,
and some make numbers from memory that holds none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, is_empty, shape_of

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
    return (replace(node, inputs=onnx_frontend.onnx_input(kept)) if kept else node).by_tvm()


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
    return replace(node, inputs=onnx_frontend.onnx_input([cropped, added, *node.inputs[2:3]])).by_tvm()


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
    return replace(node, inputs=onnx_frontend.onnx_input([node.input(0), within])).by_tvm()


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
