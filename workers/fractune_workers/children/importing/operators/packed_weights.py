"""Weights of four bits, which stay four bits in memory: the kernel of the product unpacks them as it reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from tvm import relax, te, tirx

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, shape_of
from fractune_workers.children.rewriting.expressions import is_constant

_BITS = 4
_PER_BYTE = 2
_MIDDLE = 8
"""The zero point of weights without zero points"""
_SMALLEST_BLOCK = 16
_DATA, _WEIGHT, _SCALES, _ZEROS, _GROUPS, _BIAS = range(6)


@dataclass(frozen=True)
class _Layout:
    """How the weights (columns, blocks of a column, bytes of a block) lie in memory."""

    depth: int
    columns: int
    block: int

    @property
    def blocks(self) -> int:
        return math.ceil(self.depth / self.block)

    def weights(self, packed: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None, dtype: str) -> te.Tensor:
        """(columns, depth), unpacked, in the type of the data."""

        def element(column: Any, k: Any) -> Any:
            block, within = tirx.floordiv(k, self.block), tirx.floormod(k, self.block)
            number = _half(packed(column, block, tirx.floordiv(within, _PER_BYTE)), tirx.floormod(within, _PER_BYTE))
            zero: Any = tirx.const(_MIDDLE, dtype)
            if zeros is not None and str(zeros.dtype) == "uint8":
                row = column * math.ceil(self.blocks / _PER_BYTE)
                byte = zeros(row + tirx.floordiv(block, _PER_BYTE))
                zero = _half(byte, tirx.floormod(block, _PER_BYTE)).astype(dtype)
            elif zeros is not None:
                zero = zeros(column * self.blocks + block).astype(dtype)
            return (number.astype(dtype) - zero) * scales(column * self.blocks + block).astype(dtype)

        return te.compute((self.columns, self.depth), element, name="unpacked")


def _half(byte: Any, which: Any) -> Any:
    """The lower half of a byte (`which` 0) or the upper."""
    return (byte.astype("int32") >> (which.astype("int32") * _BITS)) & 0xF


def _product(node: OnnxNode) -> relax.Expr:
    """MatMulNBits: data (..., K) times weights (N, K), which are packed by blocks along K."""
    layout = _layout(node)
    data = node.input(_DATA)
    dtype = dtype_of(data)
    rows = shape_of(data)[:-1]
    scales = _flat(node, node.input(_SCALES), layout.columns * layout.blocks)
    operands = [data, node.input(_WEIGHT), scales, *_zeros(node, layout)]

    def compute(x: te.Tensor, packed: te.Tensor, scale: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        weights = layout.weights(packed, scale, zeros[0] if zeros else None, dtype)
        k = te.reduce_axis((0, layout.depth), "k")
        return te.compute(
            (*rows, layout.columns), lambda *at: te.sum(x(*at[:-1], k) * weights(at[-1], k), axis=k), name="matmul"
        )

    product = node.builder.emit_te(compute, *operands, primfunc_name_hint="matmul_of_4_bits")
    bias = node.optional(_BIAS)
    return product if bias is None else relax.op.add(product, bias)


def _layout(node: OnnxNode) -> _Layout:
    depth, columns, block = (int(node.attributes.get(name, 0)) for name in ("K", "N", "block_size"))
    bits = int(node.attributes.get("bits", _BITS))
    if bits != _BITS:
        raise node.refused(f"its weights have {bits} bits; export it with 4")
    if block < _SMALLEST_BLOCK or block & (block - 1) or depth < 1 or columns < 1:
        raise node.refused(f"K={depth}, N={columns}, block_size={block} are not sizes of a product; export it again")
    if node.optional(_GROUPS) is not None:
        raise node.refused("its columns are reordered (g_idx); export it without")
    layout = _Layout(depth, columns, block)
    expected = [columns, layout.blocks, block // _PER_BYTE]
    if shape_of(node.input(_WEIGHT)) != expected or dtype_of(node.input(_WEIGHT)) != "uint8":
        raise node.refused(f"weights of shape {shape_of(node.input(_WEIGHT))}, expected {expected}; export it again")
    if shape_of(node.input(_DATA))[-1] != depth:
        raise node.refused(f"data of shape {shape_of(node.input(_DATA))} for K={depth}; export it again")
    return layout


def _zeros(node: OnnxNode, layout: _Layout) -> list[relax.Expr]:
    """Zero points, two in a byte or one in each element; none without them."""
    zeros = node.optional(_ZEROS)
    if zeros is None:
        return []
    of_a_column = math.ceil(layout.blocks / _PER_BYTE) if dtype_of(zeros) == "uint8" else layout.blocks
    return [_flat(node, zeros, layout.columns * of_a_column)]


def _flat(node: OnnxNode, value: relax.Expr, size: int) -> relax.Expr:
    if math.prod(shape_of(value)) != size:
        raise node.refused(
            f"scales or zero points of shape {shape_of(value)}, expected {size} numbers; export it again"
        )
    if is_constant(value):
        return relax.const(value.value.numpy().reshape(size))
    return node.emit(relax.op.reshape(value, [size]))


def inferred(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> dict[str, onnx.TypeProto]:
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


PACKED_WEIGHTS: Mapping[str, Converter] = {"com.microsoft.MatMulNBits": _product}
"""by ONNX's names"""
