"""Quantizing and dequantizing, with ONNX's meaning: ties round to even, and nothing saturates but the result.

A quantized activation stays float32 between QuantizeLinear and DequantizeLinear: `clip(round(x / scale) + zero)` are
whole numbers. So the pair is a chain of element-wise operators. A dequantized constant is a constant. Numbers of 2 and
4 bits are held as bytes, since no kernel reads smaller elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, TypeProto
from onnx.helper import make_tensor_type_proto, tensor_dtype_to_np_dtype
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_workers.children.importing.operators.onnx_node import (
    AS_BYTES,
    INTEGER_RANGES,
    Converter,
    OnnxNode,
    as_type,
    dtype_of,
    shape_of,
)
from fractune_workers.children.importing.operators.packed_weights import keep_packed
from fractune_workers.children.importing.operators.recurrent import (
    B,
    R,
    W,
    X,
    biases,
    operands_of,
    outputs_of,
    recurrence_of,
)
from fractune_workers.children.recurrent.recurrence import LSTM, Recurrence, split
from fractune_workers.children.rewriting.expressions import bound_call, is_constant, operator_of

_MATRIX = 2
_Forms = Mapping[tuple[int, ...], list[int]]
"""By the shape of a zero point that is not one number: its shape to broadcast over the input"""


def _matmul(node: OnnxNode) -> relax.Expr:
    rows = _without_zero(node, 0, 2, _row_forms)
    columns = _without_zero(node, 1, 3, _column_forms)
    return relax.op.matmul(rows, columns, out_dtype="int32")


def _row_forms(shape: list[int]) -> _Forms:
    whole = [*shape[:-1], 1]
    return {tuple(whole): whole, tuple(shape[:-1]): whole} if len(shape) == _MATRIX else {tuple(whole): whole}


def _column_forms(shape: list[int]) -> _Forms:
    whole = [*shape[:-2], 1, shape[-1]]
    return {tuple(whole): whole, (shape[-1],): [shape[-1]]}


def _conv(node: OnnxNode) -> relax.Expr:
    data = _without_zero(node, 0, 2, lambda _: {})
    weight = _without_zero(node, 1, 3, lambda shape: {(shape[0],): [shape[0], *[1] * (len(shape) - 1)]})
    # TVM's converter of the operator `Conv` reads the attributes, which are the same.
    convert = onnx_frontend.Conv.get_converter(node.opset)
    inputs = onnx_frontend.onnx_input([data, weight, None])
    return convert(node.builder, inputs, dict(node.attributes), [{}, {}])


def _without_zero(node: OnnxNode, index: int, zero_index: int, forms: Callable[[list[int]], _Forms]) -> relax.Expr:
    """The input as int32, less its zero point. `forms`: by the input's shape, the zero points of several numbers."""
    value, zero = node.input(index), node.optional(zero_index)
    numbers = node.builder.normalize(as_type("int32", value))
    if zero is None:
        return numbers
    target = {(): [1], (1,): [1], **forms(shape_of(value))}.get(tuple(shape_of(zero)))
    if target is None:
        raise node.refused(
            f"its zero point '{node.proto.input[zero_index]}' has the shape {shape_of(zero)}, which does not fit "
            f"{shape_of(value)}; export it with one number"
        )
    known = node.constant(zero_index)
    if known is not None and not known.any():
        return numbers
    zero = relax.const(known.reshape(target)) if known is not None else node.emit(relax.op.reshape(zero, target))
    if known is not None and is_constant(value):
        return relax.const(numbers.value.numpy() - zero.value.numpy().astype("int32"))
    return node.emit(relax.op.subtract(numbers, as_type("int32", zero)))


INTEGER_PRODUCTS: Mapping[str, Converter] = {"ConvInteger": _conv, "MatMulInteger": _matmul}
"""by ONNX's names"""

_Array = npt.NDArray[Any]
_COUNTED: dict[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
}
"""Types that Relax's own operators quantize to and from, when scales and zero points are constants"""
_BYTE_RANGE = (0, 255)
_AXIS = 1
"""ONNX's default"""
_MATRIX_RANK = 2


def _quantize(node: OnnxNode) -> relax.Expr:
    kind = int(node.attributes.get("output_dtype") or node.element_type(2) or TensorProto.UINT8)
    bounds = INTEGER_RANGES.get(kind)
    if bounds is None:
        raise node.refused(f"it quantizes to {TensorProto.DataType.Name(kind)}; quantize to whole numbers, as int8")
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    known = node.constant(1)
    if known is not None and not known.all():
        raise node.refused("its scale is 0, and nothing can be divided by 0; export it with another scale")
    blocks = _Blocks(node, shape_of(x))
    plain = None if node.attributes.get("precision") else blocks.plain(x, kind)
    if plain is not None:
        return node.emit(relax.op.quantize(x, *plain, out_dtype=_COUNTED[kind]))
    precision = node.attributes.get("precision")
    dtype = str(tensor_dtype_to_np_dtype(precision)) if precision else _wider(dtype_of(x), dtype_of(scale))
    ratio = relax.op.divide(blocks.split(as_type(dtype, x)), blocks.parameter(as_type(dtype, scale)))
    numbers = as_type("float32", node.emit(relax.op.round(ratio)))
    if zero is not None and not _is_zero(node.constant(2)):
        numbers = relax.op.add(numbers, blocks.parameter(as_type("float32", zero)))
    numbers = node.emit(blocks.join(relax.op.clip(numbers, *bounds)))
    return node.emit(as_type(AS_BYTES.get(kind) or str(tensor_dtype_to_np_dtype(kind)), numbers))


def _dequantize(node: OnnxNode) -> relax.Expr:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    blocks = _Blocks(node, shape_of(x))
    kind = node.attributes.get("output_dtype")
    dtype = str(tensor_dtype_to_np_dtype(kind)) if kind else dtype_of(scale)
    numbers, scales, zeros = (node.constant(index) for index in range(3))
    if numbers is not None and scales is not None and (zero is None or zeros is not None):
        columns = blocks.of_columns(scales)
        if columns is not None:
            keep_packed(node, numbers, columns, None if zeros is None else blocks.of_columns(zeros))
        return relax.const(_dequantized(blocks, numbers, scales, zeros).astype(dtype))
    plain = blocks.plain(scale, node.element_type(0))
    if plain is not None and dtype == "float32":
        return node.emit(relax.op.dequantize(x, *plain, out_dtype=dtype))
    whole = blocks.split(_as_numbers(node, x))
    if zero is not None and not _is_zero(zeros):
        whole = relax.op.subtract(whole, blocks.parameter(as_type("float32", zero)))
    return as_type(dtype, blocks.join(relax.op.multiply(whole, blocks.parameter(as_type("float32", scale)))))


def _dequantized(blocks: _Blocks, x: _Array, scale: _Array, zero: _Array | None) -> _Array:
    numbers = x.astype(np.float32)
    if zero is not None and not _is_zero(zero):
        numbers = numbers - blocks.repeated(zero.astype(np.float32))
    return numbers * blocks.repeated(scale.astype(np.float32))


def _as_numbers(node: OnnxNode, x: relax.Expr) -> relax.Expr:
    """Quantized numbers as float32; those that were rounded and clipped here are float32 already."""
    cast = bound_call(node.builder, x, "astype")
    if cast is not None and dtype_of(cast.args[0]) == "float32" and _is_clipped(node, cast.args[0]):
        return cast.args[0]
    return as_type("float32", x)


def _is_clipped(node: OnnxNode, numbers: relax.Expr) -> bool:
    """Whether they are within the bounds of their type, perhaps after a change of shape."""
    value = node.builder.lookup_binding(numbers) if isinstance(numbers, relax.Var) else numbers
    return operator_of(value) == "clip" or (operator_of(value) == "reshape" and _is_clipped(node, value.args[0]))


class _Blocks:
    """How scales and zero points lie along the numbers: one for all, one for each index of an axis, or one for each
    block of an axis.
    """

    def __init__(self, node: OnnxNode, shape: list[int]) -> None:
        self._node = node
        self._shape = shape
        self._size = int(node.attributes.get("block_size", 0))
        self._axis = int(node.attributes.get("axis", _AXIS))
        parameter = shape_of(node.input(1))
        self._check_zero_point(parameter)
        self._is_one = len(parameter) == 0 or (parameter == [1] and not self._size)
        if self._is_one:
            return
        if not -len(shape) <= self._axis < len(shape):
            if len(shape) != 1 or parameter != shape:
                raise node.refused(f"axis {self._axis} is not one of {len(shape)} axes; export the model again")
            self._axis = 0  # exporters leave the default at vectors
        self._axis %= len(shape)
        if self._size:
            self._check_blocks(parameter)
        elif parameter != [shape[self._axis]]:
            raise node.refused(f"scales of shape {parameter} do not fit axis {self._axis} of {shape}; export it again")

    def _check_zero_point(self, scales: list[int]) -> None:
        zero = self._node.optional(2)
        if zero is not None and shape_of(zero) != scales and shape_of(zero) + scales != [1]:
            raise self._node.refused(
                f"its zero point has the shape {shape_of(zero)}, and its scale {scales}; export it with equal shapes"
            )

    def _check_blocks(self, scales: list[int]) -> None:
        if self._size < 0:
            raise self._node.refused(f"block_size={self._size} is not a size; export the model again")
        expected = [*self._shape]
        expected[self._axis] = -(-self._shape[self._axis] // self._size)
        if scales != expected:
            raise self._node.refused(f"scales of shape {scales}, but its blocks need {expected}; export it again")

    def plain(self, value: relax.Expr, kind: int) -> tuple[relax.Expr, relax.Expr, int] | None:
        """A scale, a zero point and their axis for Relax's own operators, which `rewriting` knows; None where these
        have another meaning. They quantize float32 numbers to and from the type `kind`; `value` has the type of the
        floating-point side.
        """
        node = self._node
        scale, zero = node.constant(1), node.constant(2)
        types = {dtype_of(value), dtype_of(node.input(1))}
        if scale is None or kind not in _COUNTED or types != {"float32"} or self._size:
            return None
        if zero is None and node.optional(2) is not None:
            return None
        zero = np.zeros_like(scale, dtype=_COUNTED[kind]) if zero is None else zero
        shape = [] if self._is_one else [-1]
        return relax.const(scale.reshape(shape)), relax.const(zero.reshape(shape)), 0 if self._is_one else self._axis

    @property
    def _is_split(self) -> bool:
        """Whether a block's numbers lie along an axis of their own. A shorter last block does not allow it."""
        return bool(self._size) and not self._is_one and self._shape[self._axis] % self._size == 0

    def split(self, numbers: relax.Expr) -> relax.Expr:
        """The numbers with a block's numbers along an axis of their own."""
        if not self._is_split:
            return numbers
        before, after = self._shape[: self._axis], self._shape[self._axis + 1 :]
        return relax.op.reshape(numbers, [*before, self._shape[self._axis] // self._size, self._size, *after])

    def join(self, numbers: relax.Expr) -> relax.Expr:
        return relax.op.reshape(self._node.builder.normalize(numbers), self._shape) if self._is_split else numbers

    def parameter(self, value: relax.Expr) -> relax.Expr:
        """Scales or zero points in a shape that broadcasts over the numbers as they are split."""
        if self._size and not self._is_one and not self._is_split:
            return self._for_each(value)
        shape = self._parameter_shape()
        if is_constant(value):
            return relax.const(value.value.numpy().reshape(shape))
        return relax.op.reshape(self._node.builder.normalize(value), shape)

    def _for_each(self, value: relax.Expr) -> relax.Expr:
        """Scales or zero points of blocks, for each number one."""
        if is_constant(value):
            return relax.const(self.repeated(value.value.numpy()))
        return relax.op.take(
            self._node.builder.normalize(value), relax.const(self._block_of_each(), "int64"), axis=self._axis
        )

    def _block_of_each(self) -> _Array:
        """By an index of the axis: its block."""
        return np.arange(self._shape[self._axis]) // self._size

    def repeated(self, values: _Array) -> _Array:
        """Constant scales or zero points in a shape that broadcasts over the numbers as they are."""
        if self._size and not self._is_one:
            return np.take(values, self._block_of_each(), axis=self._axis)
        return values.reshape(self._parameter_shape())

    def of_columns(self, values: _Array) -> _Array | None:
        """The constants of a matrix (K, N) as (N, blocks of K); None where they lie in another way."""
        if len(self._shape) != _MATRIX_RANK:
            return None
        if self._is_one:
            return np.full((self._shape[1], 1), values.reshape(-1)[0])
        if self._size:
            return values.T if self._axis == 0 else None
        return values.reshape(-1, 1) if self._axis == 1 else None

    def _parameter_shape(self) -> list[int]:
        if self._is_one:  # not a number in the code, so that layers share an operator
            return [1] if self._shape else []
        if self._size:
            blocks = shape_of(self._node.input(1))
            return [*blocks[: self._axis + 1], 1, *blocks[self._axis + 1 :]]
        return [-1 if axis == self._axis else 1 for axis in range(len(self._shape))]


def _dynamic_quantize(node: OnnxNode) -> Sequence[relax.Expr]:
    """uint8 numbers, a scale and a zero point; zeros become zeros, with scale 1 and zero point 0."""
    x = node.input(0)
    dtype = dtype_of(x)
    if "float" not in dtype:
        raise node.refused(
            f"it quantizes {dtype}, and only floating-point numbers have a range; export it with float32"
        )
    lowest, highest = (relax.const(bound, dtype) for bound in _BYTE_RANGE)
    smallest = node.emit(relax.op.minimum(relax.op.min(x), lowest))
    spread = node.emit(relax.op.subtract(relax.op.maximum(relax.op.max(x), lowest), smallest))
    is_one = node.emit(relax.op.equal(spread, lowest))
    scale = node.emit(relax.op.where(is_one, relax.const(1, dtype), relax.op.divide(spread, highest)))
    zero = relax.op.subtract(lowest, relax.op.divide(smallest, scale))
    zero = node.emit(relax.op.round(relax.op.clip(zero, *_BYTE_RANGE)))
    numbers = relax.op.add(relax.op.round(relax.op.divide(x, scale)), zero)
    numbers = node.emit(relax.op.clip(numbers, *_BYTE_RANGE))
    return [node.emit(as_type("uint8", numbers)), scale, node.emit(as_type("uint8", zero))]


def _wider(first: str, second: str) -> str:
    """The type of a quotient: whole numbers are divided as float32, and two floating-point types as the wider."""
    return first if first == second and "float" in first else "float32"


def _is_zero(numbers: _Array | None) -> bool:
    return numbers is not None and not numbers.any()


QUANTIZATION: Mapping[str, Converter] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QuantizeLinear": _quantize,
}
"""by ONNX's names"""


# ONNX Runtime's DynamicQuantizeLSTM: an LSTM with 8-bit weights. It quantizes its inputs, and the state of each
# step.
#
# The weights lie the other way round than an LSTM's: (directions, inputs, gates * units).

_OPERANDS = 8
_W_SCALE, _W_ZERO, _R_SCALE, _R_ZERO = range(8, 12)
_WEIGHT_DIMS = 3


def _convert(node: OnnxNode) -> Sequence[relax.Expr]:
    if dtype_of(node.input(X)) != "float32":
        raise node.refused(f"it computes with {dtype_of(node.input(X))}; export it with float32")
    columns, column_scales = _weights(node, W, _W_SCALE, _W_ZERO)
    recurrent, recurrent_scales = _weights(node, R, _R_SCALE, _R_ZERO)
    inputs = [node.optional(at) for at in range(_OPERANDS)]
    inputs[W], inputs[R] = (relax.const(each, str(each.dtype)) for each in (columns, recurrent))
    plain = node.with_inputs(inputs)
    operands = operands_of(plain, whole_weights=True)
    of = replace(recurrence_of(LSTM, plain, operands), whole_weights=str(recurrent.dtype))
    added, _ = biases(plain, of, operands[B])
    projected = _projected(node, of, columns, column_scales, added)
    weights = [relax.const(each, str(each.dtype)) for each in split(recurrent, of)]
    scales = relax.const(recurrent_scales.reshape(of.directions, -1), "float32")
    return outputs_of(plain, of, operands, [projected, *weights], scales=scales)


def _weights(node: OnnxNode, at: int, scale_at: int, zero_at: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The weights (D, G*H, inputs) less their zero points, in the fewest bytes, and a scale for each row (D, G*H)."""
    numbers, scale, zero = (node.constant(each) for each in (at, scale_at, zero_at))
    if numbers is None or scale is None or (zero is None and node.optional(zero_at) is not None):
        raise node.refused("its weights, scales or zero points are computed; export them as weights")
    if numbers.ndim != _WEIGHT_DIMS or numbers.dtype not in ("int8", "uint8"):
        raise node.refused(f"its weights are {numbers.dtype} of shape {list(numbers.shape)}; give 3 axes of 8 bits")
    directions, _, rows = numbers.shape
    if scale.shape not in ((directions,), (directions, 1), (directions, rows)):
        raise node.refused(f"a scale has the shape {list(scale.shape)}; give [{directions}] or [{directions}, {rows}]")
    if zero is not None and zero.shape != scale.shape:
        raise node.refused(f"a zero point has the shape {list(zero.shape)}, and its scale {list(scale.shape)}")
    wide = numbers.astype(np.int16)
    if zero is not None:
        wide = wide - zero.astype(np.int16).reshape(directions, 1, -1)
    narrow = wide.astype(np.int8)
    least = narrow if (narrow == wide).all() else wide
    scales = np.broadcast_to(scale.reshape(directions, -1), (directions, rows)).astype(np.float32)
    return np.ascontiguousarray(least.transpose(0, 2, 1)), np.ascontiguousarray(scales)


def _projected(
    node: OnnxNode, of: Recurrence, columns: npt.NDArray[Any], scales: npt.NDArray[Any], bias: Any
) -> relax.Expr:
    """As an LSTM's, but an exact product of whole numbers, then scaled."""
    data = node.input(X)
    *outer, inputs = shape_of(data)
    rows = node.emit(relax.op.reshape(data, (outer[0] * outer[1], inputs)))
    quantized = QUANTIZATION["DynamicQuantizeLinear"](node.with_inputs([rows]))
    numbers, scale, zero = (node.emit(each) for each in quantized)
    left = node.emit(relax.op.subtract(node.emit(as_type("int32", numbers)), node.emit(as_type("int32", zero))))
    right = relax.const(np.ascontiguousarray(columns.reshape(-1, inputs).T.astype(np.int32)))
    product = node.emit(relax.op.matmul(left, right, out_dtype="int32"))
    scaled = node.emit(relax.op.multiply(scale, relax.const(scales.reshape(1, -1), "float32")))
    result = node.emit(relax.op.multiply(node.emit(as_type("float32", product)), scaled))
    if bias is not None:
        result = node.emit(relax.op.add(result, bias))
    return node.emit(relax.op.reshape(result, of.projected))


def as_lstm(node: NodeProto, types: Mapping[str, TypeProto]) -> tuple[NodeProto, dict[str, TypeProto]]:
    """The LSTM with outputs of the same types, which ONNX infers, and the types of its inputs."""
    plain = NodeProto()
    plain.CopyFrom(node)
    plain.domain, plain.op_type = "", LSTM
    del plain.input[_OPERANDS:]
    given = {name: types[name] for name in plain.input if name in types}
    return plain, {**given, **dict.fromkeys(plain.input[W : R + 1], make_tensor_type_proto(TensorProto.FLOAT, None))}


QUANTIZED_LSTM: Mapping[str, Converter] = {"com.microsoft.DynamicQuantizeLSTM": _convert}
