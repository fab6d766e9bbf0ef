"""Layout rules of convolutions with constant weights and of matrix products: they compute in blocks."""

from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from fractune_core.operators import DIRECT, INT8, INT16
from fractune_workers.children.layouts import elementwise, quantized
from fractune_workers.children.layouts.kernels import direct
from fractune_workers.children.layouts.kernels.direct import Blocks, Bounds, Window, block_count, pack, pack_groups
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS
from fractune_workers.children.layouts.kernels.integers import INTEGERS, IntegerProduct
from fractune_workers.children.layouts.planner import CHANNELS, Array, Made, Planner
from fractune_workers.children.rewriting.accumulators import HALVES
from fractune_workers.children.rewriting.expressions import TAKES_AN_EPILOGUE, bound_call, operator_of, shape_of
from fractune_workers.children.tvm_api.scratch_tensors import kept

_FLOAT, _INT = "float32", "int32"
_MATRIX_RANK = 2
_LEAST_PART = 8
"""Lanes over outputs of a convolution of a plain image: with fewer outputs, a plain kernel takes as long, and less
memory."""
_FEWEST_COLUMNS = 2
"""of a computed right operand: the kernel of few columns that is not in blocks multiplies number by number"""
_MOST_OF_ROW = 2**16
"""numbers, so that float32 holds the sum of their bytes exactly"""
_PRODUCTS = frozenset({"matmul", "nn.conv2d"})


def conv2d(planner: Planner, call: Any) -> Made:
    data, weight = call.args
    numbers = planner.constant(weight)
    if numbers is None or numbers.dtype != _FLOAT:
        return None
    rows = quantized.quantized_rows(planner, data)
    columns = quantized.quantized_columns(quantized.columns_of(numbers)) if rows else None
    if rows and columns:
        return _whole_conv2d(planner, call, rows, columns, numbers.shape)
    return _conv2d(planner, call, data, numbers)


def _whole_conv2d(
    planner: Planner, call: Any, rows: quantized.Rows, columns: quantized.Columns, shape: tuple[int, ...]
) -> Made:
    """The convolution of whole numbers with weights of `shape`, times the steps of rows and columns."""
    rows = quantized.centred(planner, rows)
    numbers = np.ascontiguousarray(columns.numbers.T).reshape(shape)
    made = _conv2d(planner, call, rows.numbers, numbers, Bounds(rows.bounds, columns.bounds))
    if made is None:
        return None
    value, blocks = made
    return _in_steps(planner.emit(value), blocks, (columns.steps * np.float32(rows.step))[:, None, None])


def _in_steps(value: Any, blocks: Blocks, steps: Array) -> Made:
    """A value in blocks times the steps, which are those of its channels."""
    if (steps == 1).all():
        return value, blocks
    laid = relax.const(elementwise.packed_operand(steps, blocks, 1.0))
    return relax.op.multiply(value, laid), blocks


def _conv2d(planner: Planner, call: Any, data: Any, numbers: Array, whole: Bounds | None = None) -> Made:
    """`whole`: data and numbers are whole numbers within these bounds."""
    attrs = call.attrs
    if (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) != ("NCHW", "OIHW", "NCHW"):
        return None
    window = Window.of(attrs)
    out_channels, group_channels = numbers.shape[:2]
    lanes, groups = planner.lanes, int(attrs.groups)
    channels = group_channels * groups
    few = 2 * out_channels <= lanes
    worthwhile = planner.in_blocks(data) is not None or (
        _LEAST_PART * out_channels >= lanes and numbers[0].size >= lanes
    )
    if few and (groups > 1 or not worthwhile):
        return None
    made = planner.blocks(shape_of(call), CHANNELS)
    if groups == 1 and 2 * channels <= lanes and planner.in_blocks(data) is None:
        packed = pack(numbers, 0, lanes)
        return planner.kernel(direct.conv2d_first, data, kept(packed), name="conv2d", window=window), made
    if groups == 1:
        return dense_conv2d(planner, data, numbers, window, whole), made
    if group_channels == 1 and out_channels == groups:
        value, parts = depthwise_conv2d(planner, data, numbers, window)
    else:
        value, parts = _grouped_conv2d(planner, data, numbers, groups, window)
    return value, planner.blocks(made.shape, CHANNELS, parts)


def depthwise_conv2d(planner: Planner, data: Any, numbers: Array, window: Window) -> tuple[Any, int]:
    """The value, and the number of its parts, which are those of the image."""
    image, blocks = planner.into_blocks(data, CHANNELS)
    weights = kept(pack(numbers[:, 0], 0, planner.lanes, parts=blocks.parts))
    return planner.kernel(direct.depthwise_conv2d, image, weights, name="conv2d", window=window), blocks.parts


def _grouped_conv2d(planner: Planner, data: Any, numbers: Array, groups: int, window: Window) -> tuple[Any, int]:
    """The value, and the number of its parts."""
    lanes = planner.lanes
    out_channels, group_channels = numbers.shape[:2]
    parts = _parts(planner, data, groups, numbers)
    image, _ = planner.into_blocks(data, CHANNELS, parts)
    if parts > 1:
        packed = pack(pack(numbers, 1, direct.input_run(group_channels, lanes)), 0, lanes, parts=parts)
        group = len(packed) // groups * lanes, block_count(group_channels, lanes) * lanes
    else:
        packed, group = pack_groups(numbers, groups, lanes), (out_channels // groups, group_channels)
    compute = partial(direct.grouped_conv2d, group=group)
    value = planner.kernel(compute, image, kept(packed), name="conv2d", window=window)
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


def dense_conv2d(
    planner: Planner, data: Any, numbers: Array, window: Window, whole: Bounds | None = None, parts: int = 1
) -> Any:
    """The convolution of an image with weights (K, C, R, S), of outputs in so many `parts`, in blocks."""
    image, blocks = planner.into_blocks(data, CHANNELS)
    packed = pack(pack(numbers, 1, planner.lanes, parts=blocks.parts), 0, planner.lanes, parts=parts)
    integer = _integer(planner, whole, numbers[0].size)
    if integer is not None:
        return _own_kernel(planner, integer.convolve, image, integer.pack(packed), name="conv2d", window=window)
    run = direct.input_run(numbers.shape[1], planner.lanes)
    if run < planner.lanes and whole is None and blocks.parts == 1:
        packed = pack(pack(numbers, 1, run), 0, planner.lanes, parts=parts)
    other = IMPLEMENTATIONS.get(planner.implementation)
    if other is not None and other.fits(window, packed.shape, (blocks.shape[2], blocks.shape[3])):
        return _own_kernel(planner, other.compute, image, other.pack(packed), name="conv2d", window=window)
    return planner.kernel(direct.conv2d, image, kept(packed), name="conv2d", window=window, whole=whole)


def _integer(planner: Planner, bounds: Bounds | None, depth: int) -> IntegerProduct | None:
    """The implementation that is asked for, if it is the fastest one for whole numbers within the bounds."""
    if bounds is None:
        return None
    fitting = (name for name in planner.dot_products if INTEGERS[name].fits(bounds, depth))
    name = next(fitting, DIRECT)
    return INTEGERS[name] if name != DIRECT and name == planner.implementation else None


def _own_kernel(planner: Planner, compute: Any, data: Any, weights: Array, **options: Any) -> Any:
    """A kernel of several blocks with weights of its own."""
    return planner.kernel(compute, data, kept(weights), attributes=TAKES_AN_EPILOGUE, **options)


def matmul(planner: Planner, call: Any) -> Made:
    data, weight = call.args
    shape = shape_of(call)
    if str(data.ty.dtype) in HALVES:
        return _half_matmul(planner, call)
    if data.ty.dtype != _FLOAT or weight.ty.dtype != _FLOAT or len(shape) < _MATRIX_RANK:
        return None
    numbers = planner.constant(weight)
    if shape[-1] < _FEWEST_COLUMNS or (numbers is not None and 2 * shape[-1] <= planner.lanes):
        return None
    rows = quantized.quantized_rows(planner, data)
    if numbers is None:
        other = quantized.quantized_rows(planner, weight) if rows else None
        if rows and other and shape_of(data)[-1] % INTEGERS[INT16].group == 0:
            return _computed_matmul(planner, rows, other, shape)
        packed = _packed(planner, data, weight)
    elif numbers.ndim == _MATRIX_RANK:
        columns = quantized.quantized_columns(numbers) if rows else None
        if rows and columns:
            return _whole_matmul(planner, rows, columns, shape)
        packed = planner.once(weight, lambda: kept(_packed_columns(numbers, planner.lanes)))
    else:
        return None
    if packed is None:
        return None
    return planner.kernel(direct.matmul, data, packed, name="matmul"), planner.blocks(shape, len(shape) - 1)


def _half_matmul(planner: Planner, call: Any) -> Made:
    """A product of half precision with constant weights, which are read as they are. It is summed in float32, and
    rounded once.
    """
    data, weight = call.args
    shape, numbers = shape_of(call), planner.constant(weight)
    if numbers is None or numbers.ndim != _MATRIX_RANK or len(shape) < _MATRIX_RANK or 2 * shape[-1] <= planner.lanes:
        return None
    packed = planner.once(weight, lambda: kept(_packed_columns(numbers, planner.lanes)))
    value = planner.emit(planner.kernel(direct.matmul, data, packed, name="matmul"))
    return relax.op.astype(value, str(call.ty.dtype)), planner.blocks(shape, len(shape) - 1)


def _packed(planner: Planner, data: Any, weight: Any) -> Any | None:
    """A computed right operand, packed when the model runs, as constant weights are before. None where the product has
    too few rows to make up for it.
    """
    rows, other = shape_of(data), shape_of(weight)
    if len(rows) < _MATRIX_RANK or rows[:-2] not in ((), other[:-2]) or rows[-2] < 2 * planner.lanes:
        return None
    turned = _turned_input(planner, weight)
    if turned is None:
        return planner.emit(planner.kernel(direct.packed_columns, weight, size=planner.lanes, name="pack"))
    *outer, depth, columns = other
    count, blocks = prod(outer), block_count(columns, planner.lanes)
    function = planner.builder_.add_func(direct.packed_rows(count, columns, depth, planner.lanes), "pack")
    flat = planner.emit(relax.op.reshape(turned, (count, columns, depth)))
    packed = relax.call_tir(function, flat, relax.TensorType((count, blocks, depth, planner.lanes), _FLOAT))
    return planner.emit(relax.op.reshape(planner.emit(packed), (*outer, blocks, depth, planner.lanes)))


def _turned_input(planner: Planner, weight: Any) -> Any | None:
    """The input of the model that a right operand is, turned round, as an encoder's keys are. Its rows have whole
    blocks. No other operator can be fused with its packing.
    """
    turn, rank = bound_call(planner.builder_, weight, "permute_dims"), len(shape_of(weight))
    if turn is None or turn.attrs.axes is None or str(weight.ty.dtype) != _FLOAT:
        return None
    axes, data = list(map(int, turn.attrs.axes)), turn.args[0]
    is_input = isinstance(data, relax.Var) and planner.builder_.lookup_binding(data) is None
    is_turned = axes == [*range(rank - 2), rank - 1, rank - 2] and shape_of(data)[-1] % planner.lanes == 0
    return data if is_input and is_turned else None


def _computed_matmul(planner: Planner, rows: quantized.Rows, other: quantized.Rows, shape: tuple[int, ...]) -> Made:
    """The product of two computed values, by whole numbers. Without the zero points of either it needs no correction,
    and pairs of 16 bits hold them.
    """
    rows, other = quantized.centred(planner, rows), quantized.centred(planner, other)
    packed = _packed(planner, rows.numbers, other.numbers)
    if packed is None:
        return None
    bounds = Bounds(quantized.WIDE, quantized.WIDE, computed=True)  # of every layer, so that layers share an operator
    pairs = INTEGERS[INT16]
    if (
        planner.implementation == INT16
        and INT16 in planner.dot_products
        and pairs.fits(bounds, shape_of(rows.numbers)[-1])
    ):
        value = planner.kernel(pairs.compute_both, rows.numbers, packed, name="matmul", attributes=TAKES_AN_EPILOGUE)
    else:
        value = planner.kernel(direct.matmul, rows.numbers, packed, name="matmul", whole=bounds)
    step = relax.const(np.array([np.float32(rows.step) * np.float32(other.step)], _FLOAT))
    return relax.op.multiply(planner.emit(value), step), planner.blocks(shape, len(shape) - 1)


def cast(planner: Planner, call: Any) -> Made:
    """A product of integers, perhaps with integers added, that becomes float32: its sums need not be int32 between."""
    if (str(call.args[0].ty.dtype), str(call.ty.dtype)) != (_INT, _FLOAT):
        return elementwise.unary(planner, call)
    value = quantized.called(planner, call.args[0])
    added = None
    if operator_of(value) == "add":
        left, right = value.args
        product = quantized.called(planner, left)
        value, added = (
            (product, right) if operator_of(product) in _PRODUCTS else (quantized.called(planner, right), left)
        )
    if operator_of(value) not in _PRODUCTS or shape_of(value) != shape_of(call):
        return elementwise.unary(planner, call)
    made = _integer_product(planner, value)
    if made is None or added is None:
        return made
    value, blocks = planner.emit(made[0]), made[1]
    operand = elementwise.laid_out(planner, _in_float(planner, added), blocks, 0.0)
    return None if operand is None else (relax.op.add(value, operand), blocks)


def _in_float(planner: Planner, value: Any) -> Any:
    """An int32 value in float32. It is cast before a reshape, with which TVM fuses nothing."""
    numbers, reshape = planner.constant(value), quantized.called(planner, value)
    if numbers is not None:
        return relax.const(numbers.astype(_FLOAT))
    if operator_of(reshape) == "reshape":
        return planner.emit(relax.op.reshape(_in_float(planner, reshape.args[0]), shape_of(value)))
    return planner.emit(relax.op.astype(value, _FLOAT))


def _integer_product(planner: Planner, call: Any) -> Made:
    """In float32."""
    shape = shape_of(call)
    rows, columns = quantized.integer_rows(planner, call.args[0]), quantized.integer_columns(planner, call.args[1])
    if rows is None or columns is None:
        return None
    if operator_of(call) == "nn.conv2d":
        return _whole_conv2d(planner, call, rows, columns, shape_of(call.args[1]))
    if len(shape) < _MATRIX_RANK or len(shape_of(call.args[1])) != _MATRIX_RANK or 2 * shape[-1] <= planner.lanes:
        return None
    return _whole_matmul(planner, rows, columns, shape)


def _whole_matmul(planner: Planner, rows: quantized.Rows, columns: quantized.Columns, shape: tuple[int, ...]) -> Made:
    """The product of the whole numbers, less the part of the zero point, times the steps of rows and columns."""
    rows = quantized.of_bytes(planner, rows)
    blocks = planner.blocks(shape, len(shape) - 1)
    made = (
        quantized.in_bytes(columns) if INT8 in planner.dot_products and len(columns.numbers) <= _MOST_OF_ROW else None
    )
    value = planner.emit(_sums(planner, rows, columns) if made is None else _moved_sums(planner, rows, *made, blocks))
    if not (isinstance(rows.zero, float) and rows.zero == 0):
        value = planner.emit(relax.op.subtract(value, _part_of_zero(planner, rows, columns, blocks)))
    return _in_steps(value, blocks, columns.steps * np.float32(rows.step))


def _moved_sums(planner: Planner, rows: quantized.Rows, columns: quantized.Columns, by: Array, blocks: Blocks) -> Any:
    """As `_sums`, of columns whose numbers were moved: the sum of each row, times `by`, is missing."""
    totals = planner.emit(relax.op.sum(rows.numbers, [-1]))
    each = planner.emit(relax.op.reshape(totals, [*shape_of(totals), 1, 1]))
    missing = planner.emit(relax.op.multiply(each, relax.const(elementwise.packed_operand(by, blocks, 0.0))))
    return relax.op.add(planner.emit(_sums(planner, rows, columns)), missing)


def _part_of_zero(planner: Planner, rows: quantized.Rows, columns: quantized.Columns, blocks: Blocks) -> Any:
    """The zero point of the rows times the sums of the columns."""
    totals = columns.numbers.sum(axis=0, dtype=np.float64).astype(_FLOAT)
    if isinstance(rows.zero, float):
        return relax.const(elementwise.packed_operand(totals * np.float32(rows.zero), blocks, 0.0))
    return planner.emit(relax.op.multiply(rows.zero, relax.const(elementwise.packed_operand(totals, blocks, 0.0))))


def _sums(planner: Planner, rows: quantized.Rows, columns: quantized.Columns) -> Any:
    bounds = Bounds(rows.bounds, columns.bounds)
    packed = _packed_columns(columns.numbers, planner.lanes)
    integer = _integer(planner, bounds, len(columns.numbers))
    if integer is not None:
        return _own_kernel(planner, integer.compute, rows.numbers, integer.pack(packed), name="matmul")
    return planner.kernel(direct.matmul, rows.numbers, kept(packed), name="matmul", whole=bounds)


def _packed_columns(numbers: Array, lanes: int) -> Array:
    """(K, N) -> (N/b, K, b), a view where N fills all blocks."""
    depth, columns = numbers.shape
    missing = block_count(columns, lanes) * lanes - columns
    whole = np.pad(numbers, ((0, 0), (0, missing))) if missing else numbers
    return whole.reshape(depth, -1, lanes).transpose(1, 0, 2)
