"""Layout rules of convolutions with constant weights and of matrix products: they compute in blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax

from fractune_workers.children.layouts import kernels
from fractune_workers.children.layouts.blocks import pack
from fractune_workers.children.layouts.kernels import Window, pack_groups
from fractune_workers.children.layouts.planner import CHANNELS, Array, Made, Planner
from fractune_workers.children.rewriting.expressions import shape_of

_FLOAT = "float32"
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
    other = planner.implementation
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
    if numbers is None:
        packed = _packed(planner, data, weight)
    else:
        packed = (
            relax.const(pack(numbers, 1, planner.lanes).transpose(1, 0, 2).copy())
            if numbers.ndim == _MATRIX_RANK
            else None
        )
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
