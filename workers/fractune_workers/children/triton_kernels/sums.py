"""Recognises an operator that is one sum of products, with element-wise operators behind it.

It may be a matrix product, a product of batches, or a convolution. A convolution is a product of gathered rows
(implicit GEMM; Chetlur et al., cuDNN: Efficient Primitives for Deep Learning, 2014).

The spatial axes of the sums are batches (both factors have them), rows (only the first) and columns (only the second).
The axes of the reduction are the depth. So any affine gather is a product of a matrix of rows and one of columns.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir

from fractune_workers.children.tvm_api.tir import parts_of

_SPATIAL = 0
_SIGNED = re.compile(r"int\d+")
_MOST_ELEMENTS = 2**31 - 1
"""of a tensor: offsets have 32 bits"""
_SELECT, _STORE = "if_then_else", "BufferStore"
_SUM_TYPES = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "int8": "int32"}
"""by the type of both factors"""
_WRITTEN_SUM_TYPES = {"float32": ("float16", "bfloat16", "float32"), "int32": ("int32",)}
"""of an operator, by the kernel's own: int8 would wrap, and float64 is more exact"""

Affine = tuple[Mapping[Any, int], int]
"""strides by axis, and an offset"""


class Unfit(Exception):
    """An operator that these kernels do not compute."""

    def __str__(self) -> str:
        return "Triton's kernels do not compute this operator (any more); tune the model again"


@dataclass(frozen=True)
class Factor:
    """One factor of the products: an argument, and where its elements lie."""

    argument: int
    place: Affine
    conditions: tuple[Affine, ...]
    """of a padded image: where one is below 0, the factor is 0"""


@dataclass(frozen=True)
class Sums:
    """Sums of products, of extents batches x rows x columns x depth."""

    function: Any
    made: Mapping[Any, Any]
    """the block that writes a buffer, by buffer"""
    buffer: Any
    """that holds the sums"""
    indices: tuple[Any, ...]
    """of the sums in their buffer: axes; None for an extent of 1"""
    groups: Mapping[str, tuple[tuple[Any, int], ...]]
    """axes and their extents: of `batch`, `row`, `column` and `depth`, the outermost first"""
    factors: tuple[Factor, Factor]
    dtype: str
    """of both factors"""

    def extent(self, group: str) -> int:
        return math.prod(extent for _, extent in self.groups[group])

    @property
    def sum_dtype(self) -> str:
        return _SUM_TYPES[self.dtype]


def sums_of(function: Any) -> Sums:
    """The sums of a TIR function. Raises Unfit for another operator."""
    made = stores_of(function)
    reductions = [block for block in made.values() if block.init is not None]
    if len(reductions) != 1:
        raise Unfit
    return sums_in(function, made, reductions[0])


def stores_of(function: Any) -> dict[Any, Any]:
    """The block that writes a buffer, by buffer, in the order of the program. Raises Unfit for a tensor that is too
    large.
    """
    if any(math.prod(shape_of(each)) > _MOST_ELEMENTS for each in function.params):
        raise Unfit
    return {
        block.body.buffer: block for block in parts_of(function.body, s_tir.SBlock) if kind_of(block.body) == _STORE
    }


def sums_in(function: Any, made: Mapping[Any, Any], block: Any, inner: Sequence[Any] = ()) -> Sums:
    """The sums of one block of a TIR function. The buffers `inner` count as arguments behind those of the function.

    Raises Unfit for a block that is not a sum of products.
    """
    if kind_of(block.init) != _STORE or not is_zero(block.init.value):
        raise Unfit
    axes = {each.var: int(each.dom.extent) for each in block.iter_vars}
    at: dict[Any, Affine] = {axis: ({axis: 1} if extent > 1 else {}, 0) for axis, extent in axes.items()}
    sources = [*function.params, *inner]
    first, second = (_factor(each, sources, made, at) for each in products_of(block))
    groups, swapped = _groups(block, first.place[0], second.place[0])
    dtypes = {str(sources[each.argument].ty.dtype) for each in (first, second)}
    dtype = min(dtypes)
    sum_dtype = str(block.body.buffer.ty.dtype)
    if len(dtypes) > 1 or dtype not in _SUM_TYPES or sum_dtype not in _WRITTEN_SUM_TYPES[_SUM_TYPES[dtype]]:
        raise Unfit
    factors = (second, first) if swapped else (first, second)
    indices = tuple(next(iter(_within(index, at)[0]), None) for index in block.body.indices)
    return Sums(function, made, block.body.buffer, indices, groups, factors, dtype)


def merged_axes(axes: Sequence[tuple[Any, int]], strides: Mapping[Any, int]) -> list[tuple[int, int, int]]:
    """The axes of a group, the innermost first: the elements of the group inside each, its extent and its stride.
    Neighbours that lie like one axis are one.
    """
    inner = 1
    merged: list[tuple[int, int, int]] = []
    for axis, extent in reversed(axes):
        stride = strides.get(axis, 0)
        if merged and merged[-1][2] * merged[-1][1] == stride:
            size, own, innermost = merged[-1]
            merged[-1] = size, own * extent, innermost
        else:
            merged.append((inner, extent, stride))
        inner *= extent
    return merged


def shape_of(buffer: Any) -> tuple[int, ...]:
    """Raises Unfit for a shape that is not known."""
    try:
        return tuple(int(dim) for dim in buffer.ty.shape)
    except (AttributeError, TypeError) as error:  # a number, or a size that is not known
        raise Unfit from error


def kind_of(value: Any) -> str:
    return type(value).__name__


def uncast(value: Any) -> Any:
    """A value without casts that keep it, but for rounding between floats."""
    while kind_of(value) == "Cast" and _keeps(str(value.value.ty.dtype), str(value.ty.dtype)):
        value = value.value
    return value


def _keeps(given: str, wanted: str) -> bool:
    if "float" in wanted:
        return True
    widths = [int(dtype.removeprefix("int")) for dtype in (given, wanted) if _SIGNED.fullmatch(dtype)]
    return widths == sorted(widths) and len(widths) == len((given, wanted))


def is_zero(value: Any) -> bool:
    return getattr(uncast(value), "value", None) == 0


def products_of(block: Any) -> tuple[Any, Any]:
    """Both factors that are multiplied and added to the sum."""
    value = block.body.value
    for one, other in ((value.a, value.b), (value.b, value.a)) if kind_of(value) == "Add" else ():
        product = uncast(other)
        if kind_of(one) == "TensorLoad" and one.source.same_as(block.body.buffer) and kind_of(product) == "Mul":
            return uncast(product.a), uncast(product.b)
    raise Unfit


def _factor(value: Any, sources: Sequence[Any], made: Mapping[Any, Any], at: Mapping[Any, Affine]) -> Factor:
    """Where a factor comes from, through copies and padding."""
    conditions: list[Affine] = []
    while True:
        if kind_of(value) == "Call" and value.op.name.endswith(_SELECT):
            condition, value, other = value.args
            if not is_zero(other):
                raise Unfit
            for smaller, larger, gap in _comparisons(condition):
                conditions.append(_sum(_within(larger, at), _within(smaller, at), -1, gap))
        value = uncast(value)
        if kind_of(value) != "TensorLoad":
            raise Unfit
        indices = [_within(index, at) for index in value.indices]
        if value.source in sources:
            return Factor(sources.index(value.source), _flat(indices, shape_of(value.source)), tuple(conditions))
        block = made.get(value.source)
        if block is None or block.init is not None:
            raise Unfit
        at, value = dict(zip(block.body.indices, indices, strict=True)), uncast(block.body.value)


def _within(value: Any, at: Mapping[Any, Affine]) -> Affine:
    """An affine index over variables that are such indices themselves. Raises Unfit for another one."""
    if value in at:
        return at[value]
    kind = kind_of(value)
    if kind == "IntImm":
        return {}, int(value.value)
    if kind == "Cast":
        return _within(value.value, at)
    if kind not in ("Add", "Sub", "Mul"):
        raise Unfit
    left, right = _within(value.a, at), _within(value.b, at)
    if kind != "Mul":
        return _sum(left, right, 1 if kind == "Add" else -1)
    if left[0] and right[0]:
        raise Unfit
    (strides, offset), factor = (left, right[1]) if left[0] else (right, left[1])
    return {axis: stride * factor for axis, stride in strides.items()}, offset * factor


def _sum(left: Affine, right: Affine, factor: int, offset: int = 0) -> Affine:
    both = {axis: left[0].get(axis, 0) + factor * right[0].get(axis, 0) for axis in {**left[0], **right[0]}}
    return {axis: stride for axis, stride in both.items() if stride}, left[1] + factor * right[1] + offset


def _flat(indices: Sequence[Affine], shape: Sequence[int]) -> Affine:
    flat: Affine = ({}, 0)
    for at, index in enumerate(indices):
        flat = _sum(flat, index, math.prod(shape[at + 1 :]))
    return flat


def _comparisons(condition: Any) -> Iterator[tuple[Any, Any, int]]:
    """The smaller side, the larger side, and what to add to their difference, of each comparison in a conjunction."""
    kind = kind_of(condition)
    if kind == "And":
        yield from _comparisons(condition.a)
        yield from _comparisons(condition.b)
    elif kind in ("LT", "LE"):
        yield condition.a, condition.b, -1 if kind == "LT" else 0
    elif kind in ("GT", "GE"):
        yield condition.b, condition.a, -1 if kind == "GT" else 0
    else:
        raise Unfit


def _groups(
    block: Any, first: Mapping[Any, int], second: Mapping[Any, int]
) -> tuple[dict[str, tuple[tuple[Any, int], ...]], bool]:
    """The axes by group, and whether the factors change their places: the innermost axis of the output is a column."""
    axes = [(each.var, int(each.dom.extent)) for each in block.iter_vars if int(each.dom.extent) > 1]
    reduced = {each.var for each in block.iter_vars if int(each.iter_type) != _SPATIAL}
    spatial = [axis for axis, _ in axes if axis not in reduced]
    swapped = bool(spatial) and spatial[-1] in first and spatial[-1] not in second
    rows, columns = (second, first) if swapped else (first, second)

    def group(axis: Any) -> str:
        if axis in rows and axis in columns:
            return "depth" if axis in reduced else "batch"
        if axis in reduced or (axis not in rows and axis not in columns):
            raise Unfit
        return "row" if axis in rows else "column"

    names = [group(axis) for axis, _ in axes]
    if "depth" not in names or ("batch" in names and not {"row", "column"} <= set(names)):
        raise Unfit  # products of vectors, such as a depthwise convolution, would fill little of a tile
    groups = ("batch", "row", "column", "depth")
    return {name: tuple(each for each, own in zip(axes, names, strict=True) if own == name) for name in groups}, swapped
