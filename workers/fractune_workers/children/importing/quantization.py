"""Quantizing and dequantizing, with ONNX's meaning: ties round to even, and nothing saturates but the result.

A quantized activation stays float32 between QuantizeLinear and DequantizeLinear: `clip(round(x / scale) + zero)` are
whole numbers. So the pair is a chain of element-wise operators. A dequantized constant is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from fractune_workers.children.importing.onnx_node import Converter, OnnxNode

_BYTE_RANGE = (0, 255)


def _dynamic_quantize(node: OnnxNode) -> Sequence[relax.Expr]:
    """uint8 numbers, a scale and a zero point; zeros become zeros, with zero point 0."""
    x = node.input(0)
    dtype = str(x.ty.dtype)
    lowest, highest = (relax.const(bound, dtype) for bound in _BYTE_RANGE)
    smallest = node.emit(relax.op.minimum(relax.op.min(x), lowest))
    spread = node.emit(relax.op.subtract(relax.op.maximum(relax.op.max(x), lowest), smallest))
    spread = relax.op.where(relax.op.equal(spread, lowest), relax.const(1, dtype), spread)
    scale = node.emit(relax.op.divide(spread, highest))
    zero = relax.op.subtract(lowest, relax.op.divide(smallest, scale))
    zero = node.emit(relax.op.round(_clipped(zero, _BYTE_RANGE)))
    numbers = relax.op.add(relax.op.round(relax.op.divide(x, scale)), zero)
    return [relax.op.astype(_clipped(numbers, _BYTE_RANGE), "uint8"), scale, relax.op.astype(zero, "uint8")]


def _clipped(value: Any, bounds: tuple[int, int]) -> Any:
    return relax.op.clip(value, *bounds)


QUANTIZATION: Mapping[str, Converter] = {
    "DynamicQuantizeLinear": _dynamic_quantize,
}
"""by ONNX's names"""
