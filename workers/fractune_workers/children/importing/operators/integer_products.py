"""Products of whole numbers: int32 operands without their zero points, and an exact int32 result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, as_type, shape_of
from fractune_workers.children.rewriting.expressions import is_constant

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
