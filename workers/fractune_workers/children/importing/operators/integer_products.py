"""Products of whole numbers: int32 operands without their zero points, and an exact int32 result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, as_type, shape_of
from fractune_workers.children.rewriting.expressions import is_constant

_VECTOR = 1


def _matmul(node: OnnxNode) -> relax.Expr:
    rows = _without_zero(node, 0, 2, lambda _: [-1, 1])
    columns = _without_zero(node, 1, 3, lambda _: [-1])
    return relax.op.matmul(rows, columns, out_dtype="int32")


def _conv(node: OnnxNode) -> relax.Expr:
    data = _without_zero(node, 0, 2, lambda _: [1])
    weight = _without_zero(node, 1, 3, lambda rank: [-1, *[1] * (rank - 1)])
    # TVM's converter of the operator `Conv` reads the attributes, which are the same.
    convert = onnx_frontend.Conv.get_converter(node.opset)
    inputs = onnx_frontend.onnx_input([data, weight, None])
    return convert(node.builder, inputs, dict(node.attributes), [{}, {}])


def _without_zero(node: OnnxNode, index: int, zero_index: int, along: Callable[[int], list[int]]) -> relax.Expr:
    """The input as int32, less its zero point. `along`: by the input's rank, the shape of a zero point that is a
    vector.
    """
    value, zero = node.input(index), node.optional(zero_index)
    numbers = node.builder.normalize(as_type("int32", value))
    if zero is None:
        return numbers
    known = node.constant(zero_index)
    if known is not None and not known.any():
        return numbers
    shape = shape_of(zero)
    if len(shape) <= _VECTOR:
        target = along(len(shape_of(value))) if shape and shape != [1] else [1]
        zero = relax.const(known.reshape(target)) if known is not None else node.emit(relax.op.reshape(zero, target))
    if known is not None and is_constant(value):
        return relax.const(numbers.value.numpy() - zero.value.numpy().astype("int32"))
    return node.emit(relax.op.subtract(numbers, as_type("int32", zero)))


INTEGER_PRODUCTS: Mapping[str, Converter] = {"ConvInteger": _conv, "MatMulInteger": _matmul}
"""by ONNX's names"""
