"""Layout rules of convolutions with constant weights and of matrix products: they compute in blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from fractune_core.implementations import DIRECT
from fractune_workers.children.layouts import elementwise, kernels
from fractune_workers.children.layouts.blocks import pack
from fractune_workers.children.layouts.implementations import IMPLEMENTATIONS
from fractune_workers.children.layouts.integers import INTEGERS, Bounds
from fractune_workers.children.layouts.kernels import Window, pack_groups
from fractune_workers.children.layouts.planner import CHANNELS, Array, Made, Planner
from fractune_workers.children.layouts.quantized import (
    Columns,
    Rows,
    integer_columns,
    integer_rows,
    quantized_columns,
    quantized_rows,
)
from fractune_workers.children.rewriting.expressions import bound_call, shape_of

_FLOAT, _INT = "float32", "int32"
_MATRIX_RANK = 2
_TAKES_AN_EPILOGUE = {"op_pattern": 4}
"""TVM's kOutEWiseFusable: element-wise operators after a kernel are fused with it. TVM sets it by itself for a kernel
of one block."""


def conv2d(planner: Planner, call: Any) -> Made:
    data, weight = call.args
    numbers = planner.constant(weight)
    attrs = call.attrs
    plain = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) == ("NCHW", "OIHW", "NCHW")
    if numbers is None or numbers.dtype != _FLOAT or not plain:
        return None
    window = Window.of(attrs)
    out_channels, group_channels = numbers.shape[:2]
    lanes, groups = planner.lanes, int(attrs.groups)
    channels = group_channels * groups
    if 2 * out_channels <= lanes:
        return None
    made = planner.blocks(shape_of(call), CHANNELS)
    if groups == 1 and 2 * channels <= lanes and planner.in_blocks(data) is None:
        packed = pack(numbers, 0, lanes)
        return planner.kernel(kernels.conv2d_first, data, relax.const(packed), name="conv2d", window=window), made
    if groups == 1:
        return _dense_conv2d(planner, data, numbers, window), made
    grouped = _depthwise_conv2d if group_channels == 1 and out_channels == groups else _grouped_conv2d
    value, parts = grouped(planner, data, numbers, groups, window)
    return value, planner.blocks(made.shape, CHANNELS, parts)


def _depthwise_conv2d(planner: Planner, data: Any, numbers: Array, _groups: int, window: Window) -> tuple[Any, int]:
    """The value, and the number of its parts, which are those of the image."""
    image, blocks = planner.into_blocks(data, CHANNELS)
    weights = relax.const(pack(numbers[:, 0], 0, planner.lanes, parts=blocks.parts))
    return planner.kernel(kernels.depthwise_conv2d, image, weights, name="conv2d", window=window), blocks.parts


def _grouped_conv2d(planner: Planner, data: Any, numbers: Array, groups: int, window: Window) -> tuple[Any, int]:
    """The value, and the number of its parts."""
    lanes = planner.lanes
    out_channels, group_channels = numbers.shape[:2]
    parts = _parts(planner, data, groups, numbers)
    image, _ = planner.into_blocks(data, CHANNELS, parts)
    if parts > 1:
        packed = pack(pack(numbers, 1, lanes), 0, lanes, parts=parts)
        group = len(packed) // groups * lanes, packed.shape[1] * lanes
    else:
        packed, group = pack_groups(numbers, groups, lanes), (out_channels // groups, group_channels)
    compute = partial(kernels.grouped_conv2d, group=group)
    value = planner.kernel(compute, image, relax.const(packed), name="conv2d", window=window)
    return value, parts


def _parts(planner: Planner, data: Any, groups: int, numbers: Array) -> int:
    """The number of parts in which a convolution reads and writes its groups. Each group is a part where it fills a
    block, and where the image does not have another layout already.
    """
    if min(len(numbers) // groups, numbers.shape[1]) < planner.lanes:
        return 1
    known = planner.in_blocks(data)
    wanted = planner.blocks(shape_of(data), CHANNELS, groups)
    return groups if known is None or known[1].parts == wanted.parts else 1


def _dense_conv2d(planner: Planner, data: Any, numbers: Array, window: Window) -> Any:
    image, blocks = planner.into_blocks(data, CHANNELS)
    packed = pack(pack(numbers, 1, planner.lanes, parts=blocks.parts), 0, planner.lanes)
    other = IMPLEMENTATIONS.get(planner.implementation)
    if other is None or not other.fits(window, packed.shape, (blocks.shape[2], blocks.shape[3])):
        return planner.kernel(kernels.conv2d, image, relax.const(packed), name="conv2d", window=window)
    weights = relax.const(other.pack(packed))
    return planner.kernel(other.compute, image, weights, name="conv2d", attributes=_TAKES_AN_EPILOGUE, window=window)


def matmul(planner: Planner, call: Any) -> Made:
    data, weight = call.args
    shape = shape_of(call)
    if data.ty.dtype != _FLOAT or weight.ty.dtype != _FLOAT or len(shape) < _MATRIX_RANK:
        return None
    if 2 * shape[-1] <= planner.lanes:
        return None
    numbers = planner.constant(weight)
    rows = quantized_rows(planner, data)
    if numbers is None:
        packed = _packed(planner, data, weight)
    elif numbers.ndim == _MATRIX_RANK:
        columns = quantized_columns(numbers) if rows else None
        if rows and columns:
            return _whole_matmul(planner, rows, columns, shape)
        packed = relax.const(_packed_columns(numbers, planner.lanes))
    else:
        return None
    if packed is None:
        return None
    return planner.kernel(kernels.matmul, data, packed, name="matmul"), planner.blocks(shape, len(shape) - 1)


def _packed(planner: Planner, data: Any, weight: Any) -> Any | None:
    """A computed right operand, packed when the model runs, as constant weights are before. None where the product has
    too few rows to make up for it.
    """
    rows, other = shape_of(data), shape_of(weight)
    if len(rows) != len(other) or rows[:-2] != other[:-2] or rows[-2] < 2 * planner.lanes:
        return None
    return planner.emit(planner.kernel(kernels.packed_columns, weight, size=planner.lanes, name="pack"))


def cast(planner: Planner, call: Any) -> Made:
    """A product of integers that becomes float32: its sums need not be int32 in between."""
    product = bound_call(planner.builder_, call.args[0], "matmul")
    if product is None or (str(product.ty.dtype), str(call.ty.dtype)) != (_INT, _FLOAT):
        return elementwise.unary(planner, call)
    shape = shape_of(call)
    if len(shape) < _MATRIX_RANK or 2 * shape[-1] <= planner.lanes:
        return None
    rows, columns = integer_rows(planner, product.args[0]), integer_columns(planner, product.args[1])
    return _whole_matmul(planner, rows, columns, shape) if rows and columns else None


def _whole_matmul(planner: Planner, rows: Rows, columns: Columns, shape: tuple[int, ...]) -> Made:
    """The product of the whole numbers, less the part of the zero point, times the steps of rows and columns."""
    blocks = planner.blocks(shape, len(shape) - 1)
    emit = planner.emit
    value = emit(_sums(planner, rows, columns))
    if not (isinstance(rows.zero, float) and rows.zero == 0):
        totals = columns.numbers.sum(axis=0, dtype=np.float64).astype(_FLOAT)
        if isinstance(rows.zero, float):
            offset = relax.const(elementwise.packed_operand(totals * np.float32(rows.zero), blocks, 0.0))
        else:
            offset = emit(relax.op.multiply(rows.zero, relax.const(elementwise.packed_operand(totals, blocks, 0.0))))
        value = emit(relax.op.subtract(value, offset))
    steps = columns.steps * np.float32(rows.step)
    if not (steps == 1).all():
        value = emit(relax.op.multiply(value, relax.const(elementwise.packed_operand(steps, blocks, 1.0))))
    return value, blocks


def _sums(planner: Planner, rows: Rows, columns: Columns) -> Any:
    bounds = Bounds(rows.bounds, columns.bounds)
    packed = _packed_columns(columns.numbers, planner.lanes)
    fitting = (name for name in planner.dot_products if INTEGERS[name].fits(bounds, len(columns.numbers)))
    if next(fitting, DIRECT) != planner.implementation or planner.implementation == DIRECT:
        return planner.kernel(kernels.matmul, rows.numbers, relax.const(packed), name="matmul", whole=bounds)
    own = INTEGERS[planner.implementation]
    weights = relax.const(own.pack(packed))
    return planner.kernel(own.compute, rows.numbers, weights, name="matmul", attributes=_TAKES_AN_EPILOGUE)


def _packed_columns(numbers: Array, lanes: int) -> Array:
    """(K, N) -> (N/b, K, b)."""
    return pack(numbers, 1, lanes).transpose(1, 0, 2).copy()
