"""GatherBlockQuantized of ONNX Runtime: a look-up of rows whose numbers stay packed, and are dequantized as they are
read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import NodeProto, TensorProto, TypeProto
from onnx.helper import make_tensor_type_proto
from tvm import relax, te, tirx

from fractune_workers.children.importing.operators.onnx_node import AS_BYTES, Converter, OnnxNode, dtype_of, shape_of

_SMALLEST_BLOCK, _BYTE_BITS = 16, 8
_DATA, _INDICES, _SCALES, _ZEROS = range(4)
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
    form, shape = _form(node), shape_of(node.input(_DATA))
    scales, zeros = shape_of(node.input(_SCALES)), node.optional(_ZEROS)
    blocks = [math.ceil(dim / form.block) if at == form.quantized else dim for at, dim in enumerate(form.shape)]
    per_byte = _BYTE_BITS // form.bits if form.bits else 1
    packed = [*blocks[:-1], math.ceil(blocks[-1] / per_byte)]
    if scales != blocks or (zeros is not None and shape_of(zeros) != packed):
        given = f"{scales}{'' if zeros is None else f' and {shape_of(zeros)}'}"
        raise node.refused(f"scales and zero points of shape {given} for data {shape}; expected {blocks} and {packed}")
    operands = [node.input(_DATA), node.input(_INDICES), node.input(_SCALES), *([] if zeros is None else [zeros])]
    return node.builder.call_te(form.look_up, *operands, primfunc_name_hint="gather_blocks")


def _form(node: OnnxNode) -> _Form:
    shape, bits = shape_of(node.input(_DATA)), int(node.attributes.get("bits", 4))
    block, rank = int(node.attributes.get("block_size", 128)), len(shape)
    gathered, quantized = (
        int(node.attributes.get(name, default)) for name, default in (("gather_axis", 0), ("quantize_axis", 1))
    )
    is_own = node.element_type(_DATA) in AS_BYTES
    if not is_own and dtype_of(node.input(_DATA)) != "uint8":
        raise node.refused(f"its data are {dtype_of(node.input(_DATA))}; export them as uint8, int4 or uint4")
    if block < _SMALLEST_BLOCK or block & (block - 1) or not {gathered, quantized} <= set(range(-rank, rank)):
        raise node.refused(
            f"block_size={block}, gather_axis={gathered}, quantize_axis={quantized} do not fit data of shape {shape}; "
            "export it again"
        )
    if not is_own and (bits not in (2, 4, 8) or (gathered % rank == rank - 1 and bits < _BYTE_BITS)):
        raise node.refused(f"bits={bits}, gather_axis={gathered} do not fit data of bytes; export it again")
    packed = 0 if is_own or bits == _BYTE_BITS else bits
    whole = (*shape[:-1], shape[-1] * (_BYTE_BITS // packed)) if packed else tuple(shape)
    return _Form(whole, gathered % rank, quantized % rank, block, packed, 0 if is_own else 1 << (bits - 1))


def inferred(
    node: NodeProto, types: Mapping[str, TypeProto], _constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """The type of the result, which ONNX does not infer. `types`: of the inputs, by name."""
    data, indices, scales = (types[name].tensor_type for name in node.input[:_ZEROS])
    values = {each.name: each.i for each in node.attribute}
    shape = [dim.dim_value for dim in data.shape.dim]
    if data.elem_type == TensorProto.UINT8:
        shape[-1] *= _BYTE_BITS // values.get("bits", 4)
    at = values.get("gather_axis", 0) % len(shape)
    made = [*shape[:at], *(dim.dim_value for dim in indices.shape.dim), *shape[at + 1 :]]
    return {node.output[0]: make_tensor_type_proto(scales.elem_type, made)}


GATHER_BLOCKS: Mapping[str, Converter] = {"com.microsoft.GatherBlockQuantized": _gather}
"""by ONNX's names"""
