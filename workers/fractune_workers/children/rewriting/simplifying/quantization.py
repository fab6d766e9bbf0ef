"""Quantized values as float32: dequantized constants become numbers, and a value that is quantized and dequantized
again becomes a chain of element-wise operators. Layout planning and fusion understand both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.rewriting.simplifying.simplifier import Array, Simplifier

_FLOAT = "float32"
_COUNTED = frozenset({"int8", "uint8", "int16", "uint16"})
"""types whose numbers float32 holds exactly"""


def dequantized(simplifier: Simplifier, call: Any) -> Any | None:
    data, *parameters = call.args
    scale, zero = map(simplifier.numbers, parameters)
    if scale is None or zero is None or str(call.attrs.out_dtype) != _FLOAT:
        return None
    numbers = simplifier.numbers(data)
    if numbers is not None:
        return relax.const(dequantized_numbers(numbers, scale, zero, int(call.attrs.axis)))
    quantized = simplifier.call(data, "quantize")
    return None if quantized is None else _rounded(simplifier, quantized, scale, zero)


def dequantized_numbers(numbers: Array, scale: Array, zero: Array, axis: int) -> Array:
    """As ONNX's DequantizeLinear: (numbers - zero) * scale in float32, with several of each along `axis`."""
    along = [1] * numbers.ndim
    if numbers.ndim:
        along[axis] = -1
    scales, zeros = (each.reshape(along if each.size > 1 else ()) for each in (scale, zero))
    counted: Array = (numbers.astype(np.int32) - zeros.astype(np.int32)).astype(_FLOAT) * scales.astype(_FLOAT)
    return counted


def _rounded(simplifier: Simplifier, quantized: Any, scale: Array, zero: Array) -> Any | None:
    """A value quantized and dequantized by one scale and one zero point: `clip(round(x / scale)) * scale`.

    ONNX adds the zero point before it clips, and subtracts it again. The limits without it give the same numbers. Scale
    and limits are tensors of one element, not numbers in the code, so that layers share an operator.
    """
    source, *parameters = quantized.args
    alike = [simplifier.numbers(each) for each in parameters]
    dtype = str(quantized.attrs.out_dtype)
    if dtype not in _COUNTED or str(source.ty.dtype) != _FLOAT or scale.size != 1 or zero.size != 1:
        return None
    if any(
        own is None or own.size != 1 or own.item() != other.item()
        for own, other in zip(alike, (scale, zero), strict=True)
    ):
        return None
    limits, point = np.iinfo(dtype), int(zero.item())
    step = _one(scale.item())
    counted = simplifier.emit(relax.op.round(simplifier.emit(relax.op.divide(source, step))))
    below = simplifier.emit(relax.op.minimum(counted, _one(limits.max - point)))
    within = simplifier.emit(relax.op.maximum(below, _one(limits.min - point)))
    return relax.op.multiply(within, step)


def _one(number: float) -> Any:
    return relax.const(np.array([number], _FLOAT))
