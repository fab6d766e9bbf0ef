"""Operators of half precision that are computed in float32 and rounded once, as ONNX Runtime computes them.

They become several operators of Relax, or have no kernel of half precision. A square of half precision is infinite from
256 on, and an exponential from 12 on, though the result would fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_workers.children.importing.onnx_graph import operator_of
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of
from fractune_workers.children.rewriting.widened import HALVES

_WIDE = "float32"
_SEVERAL = """
    Celu Det Elu GlobalLpPool GridSample HardSigmoid HardSwish InstanceNormalization IsInf IsNaN LpNormalization LpPool
    LRN MeanVarianceNormalization Mish PRelu ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare Resize Selu
    Sign Softsign Swish ThresholdedRelu Upsample
"""
"""by ONNX's names"""


def is_widened(node: onnx.NodeProto) -> bool:
    """Whether the operator is computed in float32 where it has half precision."""
    return operator_of(node) in _SEVERAL.split()


def widened(convert: Converter, node: OnnxNode) -> Any:
    """The node's outputs, converted from its inputs in float32 and rounded to their type."""
    halves = [each for each in map(node.optional, range(len(node.inputs))) if each is not None and _is_half(each)]
    if not halves:
        return convert(node)
    inputs = [
        node.emit(relax.op.astype(each, _WIDE)) if each is not None and _is_half(each) else each
        for each in map(node.optional, range(len(node.inputs)))
    ]
    made = convert(replace(node, inputs=onnx_frontend.onnx_input(inputs)))
    outputs = list(made) if isinstance(made, list | tuple | relax.Tuple) else [made]
    return [_rounded(node, at, node.builder.normalize(each), dtype_of(halves[0])) for at, each in enumerate(outputs)]


def _is_half(value: relax.Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and dtype_of(value) in HALVES


def _rounded(node: OnnxNode, at: int, value: relax.Expr, dtype: str) -> relax.Expr:
    """An output in its type: statistics of a normalisation are in float32."""
    name = node.proto.output[at] if at < len(node.proto.output) else ""
    is_kept = dtype_of(value) != _WIDE or node.importer.element_types.get(name) == onnx.TensorProto.FLOAT
    return value if is_kept else relax.op.astype(value, dtype)
