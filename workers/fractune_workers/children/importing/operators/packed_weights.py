"""Weights of four bits, which stay four bits in memory: those of MatMulNBits, and constant ones that a MatMul reads
through DequantizeLinear. The kernel of the product unpacks them as it reads them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from tvm import relax

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, shape_of
from fractune_workers.children.layouts.four_bits import ALL_BITS, BITS, MIDDLE, PER_BYTE, four_bit_product
from fractune_workers.children.rewriting.expressions import bound_call, is_constant

_Array = npt.NDArray[Any]
_SMALLEST_BLOCK = 16
_ROUNDS_TO_BYTES = 4
"""the `accuracy_level` that lets a runtime round the data to 8 bits"""
_LOWEST: Mapping[int, int] = {TensorProto.INT4: -MIDDLE, TensorProto.UINT4: 0}
"""The smallest number of each type of four bits"""
_DATA, _WEIGHT, _SCALES, _ZEROS, _GROUPS, _BIAS = range(6)


@dataclass(frozen=True)
class _Layout:
    """How the weights (columns, blocks of a column, bytes of a block) lie in memory."""

    depth: int
    columns: int
    block: int
    bits: int

    @property
    def blocks(self) -> int:
        return math.ceil(self.depth / self.block)


def _product(node: OnnxNode) -> relax.Expr:
    """MatMulNBits: data (..., K) times weights (N, K), which are packed by blocks along K."""
    layout = _layout(node)
    scales = _flat(node, node.input(_SCALES), layout.columns * layout.blocks)
    rounds = int(node.attributes.get("accuracy_level", 0)) == _ROUNDS_TO_BYTES
    made = _of_rows(node, [node.input(_WEIGHT), scales, *_zeros(node, layout)], layout.bits, rounds=rounds)
    bias = node.optional(_BIAS)
    return made if bias is None else relax.op.add(made, bias)


def _of_rows(node: OnnxNode, operands: Sequence[relax.Expr], bits: int = BITS, *, rounds: bool = False) -> relax.Expr:
    """The product of the node's first input with weights, scales and perhaps zero points (`four_bit_product`)."""
    data = node.input(_DATA)
    *rows, depth = shape_of(data)
    if len(rows) == 1:
        return node.emit(four_bit_product(node.builder, [data, *operands], bits, rounds=rounds))
    flat = node.emit(relax.op.reshape(data, [math.prod(rows), depth]))
    product = node.emit(four_bit_product(node.builder, [flat, *operands], bits, rounds=rounds))
    return node.emit(relax.op.reshape(product, [*rows, *shape_of(product)[1:]]))


def _layout(node: OnnxNode) -> _Layout:
    depth, columns, block = (int(node.attributes.get(name, 0)) for name in ("K", "N", "block_size"))
    bits = int(node.attributes.get("bits", BITS))
    if bits not in ALL_BITS:
        raise node.refused(f"its weights have {bits} bits; export it with {', '.join(map(str, ALL_BITS))}")
    if node.attributes.get("weight_prepacked", 0):
        raise node.refused("its weights are packed for one GPU (weight_prepacked); export it without")
    if block < _SMALLEST_BLOCK or block & (block - 1) or depth < 1 or columns < 1:
        raise node.refused(f"K={depth}, N={columns}, block_size={block} are not sizes of a product; export it again")
    if node.optional(_GROUPS) is not None:
        raise node.refused("its columns are reordered (g_idx); export it without")
    layout = _Layout(depth, columns, block, bits)
    expected = [columns, layout.blocks, block * bits // 8]
    if shape_of(node.input(_WEIGHT)) != expected or dtype_of(node.input(_WEIGHT)) != "uint8":
        raise node.refused(f"weights of shape {shape_of(node.input(_WEIGHT))}, expected {expected}; export it again")
    if shape_of(node.input(_DATA))[-1] != depth:
        raise node.refused(f"data of shape {shape_of(node.input(_DATA))} for K={depth}; export it again")
    return layout


def _zeros(node: OnnxNode, layout: _Layout) -> list[relax.Expr]:
    """Zero points, packed in bytes or one in each element; none without them."""
    zeros = node.optional(_ZEROS)
    if zeros is None:
        return []
    of_a_column = math.ceil(layout.blocks * layout.bits / 8) if dtype_of(zeros) == "uint8" else layout.blocks
    return [_flat(node, zeros, layout.columns * of_a_column)]


def _flat(node: OnnxNode, value: relax.Expr, size: int) -> relax.Expr:
    if math.prod(shape_of(value)) != size:
        raise node.refused(
            f"scales or zero points of shape {shape_of(value)}, expected {size} numbers; export it again"
        )
    if is_constant(value):
        return relax.const(value.value.numpy().reshape(size))
    return node.emit(relax.op.reshape(value, [size]))


def inferred(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], _constants: Mapping[str, onnx.TensorProto]
) -> dict[str, onnx.TypeProto]:
    """The type of the product, which ONNX does not infer. `types`: of the inputs, by name."""
    columns = next((each.i for each in node.attribute if each.name == "N"), 0)
    if columns < 1 or not node.input or node.input[_DATA] not in types:
        return {}
    made = onnx.TypeProto()
    made.CopyFrom(types[node.input[_DATA]])
    if not made.tensor_type.shape.dim:
        return {}
    made.tensor_type.shape.dim[-1].Clear()
    made.tensor_type.shape.dim[-1].dim_value = columns
    return {node.output[0]: made}


def keep_packed(node: OnnxNode, numbers: _Array, scales: _Array, zeros: _Array | None) -> None:
    """Note the constant matrix (K, N) that a DequantizeLinear makes of numbers of four bits, for products with it.

    Scales and zero points are (N, blocks of K). Other types and odd blocks are not noted.
    """
    lowest = _LOWEST.get(node.element_type(0))
    depth, (columns, blocks) = len(numbers), scales.shape
    is_odd = blocks > 1 and depth // blocks % _SMALLEST_BLOCK
    if lowest is None or scales.dtype != np.float32 or "output_dtype" in node.attributes or is_odd:
        return
    size = math.ceil(depth / blocks / PER_BYTE)
    halves = np.zeros((columns, blocks * size * PER_BYTE), np.uint8)
    halves[:, :depth] = numbers.T - lowest
    packed = (halves[:, ::2] | halves[:, 1::2] << BITS).reshape(columns, blocks, size)
    middles = np.broadcast_to(0.0 if zeros is None else zeros, scales.shape).astype(np.float32) - lowest
    operands = [packed, scales.reshape(-1), *([] if (middles == MIDDLE).all() else [middles.reshape(-1)])]
    node.importer.packed_weights[node.proto.output[0]] = depth, [relax.const(each) for each in operands]


def _matmul(node: OnnxNode) -> Any:
    """MatMul. A product of whole numbers is faster where the data are quantized, and each column has one scale."""
    data = node.input(_DATA)
    depth, operands = node.importer.packed_weights.get(node.proto.input[_WEIGHT], (0, []))
    if not operands or dtype_of(data) != "float32" or shape_of(data)[-1:] != [depth]:
        return node.by_tvm()
    packed = operands[0]
    is_whole = shape_of(packed)[1] == 1 and bound_call(node.builder, data, "dequantize") is not None
    return node.by_tvm() if is_whole else _of_rows(node, operands)


PACKED_WEIGHTS: Mapping[str, Converter] = {"com.microsoft.MatMulNBits": _product}
"""by ONNX's names"""
DEQUANTIZED_WEIGHTS: Mapping[str, Converter] = {"MatMul": _matmul}
"""by ONNX's names; TVM converts these operators too"""
