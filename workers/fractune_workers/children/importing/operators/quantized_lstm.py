"""ONNX Runtime's DynamicQuantizeLSTM: an LSTM with 8-bit weights. It quantizes its inputs, and the state of each
step.

The weights lie the other way round than an LSTM's: (directions, inputs, gates * units).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, as_type, dtype_of, shape_of
from fractune_workers.children.importing.operators.quantization import QUANTIZATION
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
    plain = replace(node, inputs=inputs)
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
    quantized = QUANTIZATION["DynamicQuantizeLinear"](replace(node, inputs=[rows]))
    numbers, scale, zero = (node.emit(each) for each in quantized)
    left = node.emit(relax.op.subtract(node.emit(as_type("int32", numbers)), node.emit(as_type("int32", zero))))
    right = relax.const(np.ascontiguousarray(columns.reshape(-1, inputs).T.astype(np.int32)))
    product = node.emit(relax.op.matmul(left, right, out_dtype="int32"))
    scaled = node.emit(relax.op.multiply(scale, relax.const(scales.reshape(1, -1), "float32")))
    result = node.emit(relax.op.multiply(node.emit(as_type("float32", product)), scaled))
    if bias is not None:
        result = node.emit(relax.op.add(result, bias))
    return node.emit(relax.op.reshape(result, of.projected))


QUANTIZED_LSTM: Mapping[str, Converter] = {"com.microsoft.DynamicQuantizeLSTM": _convert}
