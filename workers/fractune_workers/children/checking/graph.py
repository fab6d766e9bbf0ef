"""What an ONNX graph computes, as far as the choice of inputs and the rounding depend on it."""

from collections.abc import Collection

import onnx

from fractune_core.agreement import Precision
from fractune_workers.children.importing.onnx_graph import all_nodes, inputs_of, names_read, operator_of

_MOVING = """
    Concat Constant DepthToSpace Dropout Expand Flatten Gather Identity Pad Reshape Shape Size Slice
    SpaceToDepth Split Squeeze Tile Transpose Unsqueeze
"""
_ARITHMETIC = "Abs Add Div Mul Neg Sub Sqrt IsInf IsNaN And Or Not Xor Where"
_COMPARING = """
    ArgMax ArgMin Ceil Clip Equal Floor GlobalMaxPool Greater GreaterOrEqual HardSigmoid LeakyRelu Less LessOrEqual Max
    MaxPool Min PRelu ReduceMax ReduceMin Relu Round Sigmoid Sign Softsign Tanh ThresholdedRelu TopK
"""
NOT_SUMMING = frozenset((_MOVING + _ARITHMETIC + _COMPARING).split())
"""Operators whose results do not depend on the order of additions, so that an overflow is the same in every order"""
NOT_COMPARING = frozenset((_MOVING + _ARITHMETIC + " Gemm MatMul ReduceMean ReduceSum Sum").split())
"""Operators for which IEEE 754 says what becomes of a NaN and an infinity. ONNX does not say it of a maximum"""
_QUANTIZING = (
    *("QuantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear"),
    *("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"),
)
_MICROSOFTS = "com.microsoft."
_QUANTIZING_THERE = ("Quantize", "Integer", "QLinear", "QAttention", "QGemm", "NBits", "Dequantize")
_HALF = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def precision_of(model: onnx.ModelProto) -> Precision:
    nodes = list(all_nodes([*model.graph.node, *(node for function in model.functions for node in function.node)]))
    half = any(tensor.data_type in _HALF for tensor in model.graph.initializer)
    half |= any(value.type.tensor_type.elem_type in _HALF for value in model.graph.input)
    half |= any(node.op_type == "Cast" and attribute.i in _HALF for node in nodes for attribute in node.attribute)
    return Precision(half=half, quantized=any(map(_is_quantizing, nodes)))


def _is_quantizing(node: onnx.NodeProto) -> bool:
    name = operator_of(node)
    return name in _QUANTIZING or (name.startswith(_MICROSOFTS) and any(part in name for part in _QUANTIZING_THERE))


def reached_by_others(graph: onnx.GraphProto, allowed: Collection[str]) -> set[str]:
    """The values that depend on an input through an operator that is not `allowed`."""
    depending, reached = {value.name for value in inputs_of(graph)}, set[str]()
    for node in graph.node:
        read = names_read(node)
        if read & depending:
            depending.update(node.output)
            if operator_of(node) not in allowed or read & reached:
                reached.update(node.output)
    return reached
