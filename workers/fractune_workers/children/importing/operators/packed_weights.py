"""Weights that stay four bits in memory, and are unpacked as they are read.

They are those of MatMulNBits, constant ones that a MatMul reads through DequantizeLinear, and the rows that
GatherBlockQuantized looks up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, TypeProto
from onnx.helper import make_tensor_type_proto
from tvm import relax, te, tirx

from fractune_workers.children.importing.operators.onnx_node import AS_BYTES, Converter, OnnxNode, dtype_of, shape_of
from fractune_workers.children.layouts.four_bits import ALL_BITS, BITS, MIDDLE, PER_BYTE, four_bit_product
from fractune_workers.children.rewriting.expressions import bound_call, is_constant

_SMALLEST_ROW_BLOCK, _BYTE_BITS = 16, 8
_TABLE, _INDICES, _TABLE_SCALES, _TABLE_ZEROS = range(4)
_WIDE = "float32"


@dataclass(frozen=True)
class _Form:
    shape: tuple[int, ...]
    """of the data, unpacked"""
    gathered: int
    """the axis of the rows"""
    quantized: int
    """the axis of the blocks"""
    block: int
    bits: int
    """of a packed number; 0: each number has an element of its own"""
    zero: int
    """the zero point, where none is given"""

    def look_up(
        self, data: te.Tensor, indices: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None = None
    ) -> te.Tensor:
        """Zeros for an index outside."""
        rows, at, count = self.shape[self.gathered], self.gathered, len(indices.shape)
        shape = [*self.shape[:at], *(int(dim) for dim in indices.shape), *self.shape[at + 1 :]]

        def element(*place: Any) -> Any:
            index = indices(*place[at : at + count]).astype("int64")
            row = tirx.if_then_else(index < 0, index + rows, index)
            inside = tirx.max(tirx.min(row, tirx.const(rows - 1, "int64")), tirx.const(0, "int64"))
            own = [*place[:at], inside, *place[at + count :]]
            blocks = [each // self.block if axis == self.quantized else each for axis, each in enumerate(own)]
            zero = tirx.const(self.zero, _WIDE) if zeros is None else self._number(zeros, blocks)
            value = (self._number(data, own) - zero) * scales(*blocks).astype(_WIDE)
            return tirx.if_then_else(row == inside, value, tirx.const(0.0, _WIDE)).astype(scales.dtype)

        return te.compute(shape, element, name="gather_blocks")

    def _number(self, packed: te.Tensor, place: list[Any]) -> Any:
        """A number of the data or of the zero points; the first of a byte has its lowest bits."""
        if not self.bits:
            return packed(*place).astype(_WIDE)
        per_byte = _BYTE_BITS // self.bits
        byte = packed(*place[:-1], place[-1] // per_byte).astype("int32")
        shift = (place[-1] % per_byte).astype("int32") * self.bits
        return ((byte >> shift) & (2**self.bits - 1)).astype(_WIDE)


def _gather(node: OnnxNode) -> relax.Expr:
    form, shape = _form(node), shape_of(node.input(_TABLE))
    scales, zeros = shape_of(node.input(_TABLE_SCALES)), node.optional(_TABLE_ZEROS)
    blocks = [math.ceil(dim / form.block) if at == form.quantized else dim for at, dim in enumerate(form.shape)]
    per_byte = _BYTE_BITS // form.bits if form.bits else 1
    packed = [*blocks[:-1], math.ceil(blocks[-1] / per_byte)]
    if scales != blocks or (zeros is not None and shape_of(zeros) != packed):
        given = f"{scales}{'' if zeros is None else f' and {shape_of(zeros)}'}"
        raise node.refused(f"scales and zero points of shape {given} for data {shape}; expected {blocks} and {packed}")
    operands = [
        node.input(_TABLE),
        node.input(_INDICES),
        node.input(_TABLE_SCALES),
        *([] if zeros is None else [zeros]),
    ]
    return node.builder.call_te(form.look_up, *operands, primfunc_name_hint="gather_blocks")


def _form(node: OnnxNode) -> _Form:
    shape, bits = shape_of(node.input(_TABLE)), int(node.attributes.get("bits", 4))
    block, rank = int(node.attributes.get("block_size", 128)), len(shape)
    gathered, quantized = (
        int(node.attributes.get(name, default)) for name, default in (("gather_axis", 0), ("quantize_axis", 1))
    )
    is_own = node.element_type(_TABLE) in AS_BYTES
    if not is_own and dtype_of(node.input(_TABLE)) != "uint8":
        raise node.refused(f"its data are {dtype_of(node.input(_TABLE))}; export them as uint8, int4 or uint4")
    if block < _SMALLEST_ROW_BLOCK or block & (block - 1) or not {gathered, quantized} <= set(range(-rank, rank)):
        raise node.refused(
            f"block_size={block}, gather_axis={gathered}, quantize_axis={quantized} do not fit data of shape {shape}; "
            "export it again"
        )
    if not is_own and (bits not in (2, 4, 8) or (gathered % rank == rank - 1 and bits < _BYTE_BITS)):
        raise node.refused(f"bits={bits}, gather_axis={gathered} do not fit data of bytes; export it again")
    packed = 0 if is_own or bits == _BYTE_BITS else bits
    whole = (*shape[:-1], shape[-1] * (_BYTE_BITS // packed)) if packed else tuple(shape)
    return _Form(whole, gathered % rank, quantized % rank, block, packed, 0 if is_own else 1 << (bits - 1))


def inferred_rows(
    node: NodeProto, types: Mapping[str, TypeProto], _constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """The type of the result, which ONNX does not infer. `types`: of the inputs, by name."""
    data, indices, scales = (types[name].tensor_type for name in node.input[:_TABLE_ZEROS])
    values = {each.name: each.i for each in node.attribute}
    shape = [dim.dim_value for dim in data.shape.dim]
    if data.elem_type == TensorProto.UINT8:
        shape[-1] *= _BYTE_BITS // values.get("bits", 4)
    at = values.get("gather_axis", 0) % len(shape)
    made = [*shape[:at], *(dim.dim_value for dim in indices.shape.dim), *shape[at + 1 :]]
    return {node.output[0]: make_tensor_type_proto(scales.elem_type, made)}


GATHER_BLOCKS: Mapping[str, Converter] = {"com.microsoft.GatherBlockQuantized": _gather}
"""by ONNX's names"""


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
