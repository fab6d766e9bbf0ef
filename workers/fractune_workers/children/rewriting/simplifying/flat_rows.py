"""Moves a change of the axes before the last one below the operators that do not see it.

An optimizer of ONNX files computes products with a bias on two axes, (tokens, width), between two reshapes. A reshape
separates a product from the element-wise operators behind it, which could be its epilogue. So they compute on two axes
as well, and the reshapes meet and cancel.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax

from fractune_workers.children.rewriting.expressions import is_constant, shape_of
from fractune_workers.children.rewriting.simplifying.simplifier import Simplifier

_FLAT_RANK = 2


def reshaped(simplifier: Simplifier, call: Any) -> Any | None:
    """A reshape of a reshape is one, or none."""
    inner = simplifier.call(call.args[0], "reshape")
    if inner is None:
        return None
    source = inner.args[0]
    return source if shape_of(source) == shape_of(call) else relax.op.reshape(source, shape_of(call))


def elementwise(simplifier: Simplifier, call: Any) -> Any | None:
    """Element-wise operators, and normalisations of rows."""
    if all(_rows(simplifier, operand) is None for operand in call.args):
        return None
    flat = [_flat(simplifier, operand, shape_of(call)) for operand in call.args]
    if any(each is None for each in flat):
        return None
    return relax.op.reshape(simplifier.emit(relax.Call(call.op, flat, call.attrs)), shape_of(call))


def layer_norm(simplifier: Simplifier, call: Any) -> Any | None:
    rank = len(shape_of(call))
    rows = _rows(simplifier, call.args[0])
    if rows is None or [int(axis) % rank for axis in call.attrs.axes] != [rank - 1]:
        return None
    attrs = call.attrs
    options = {"epsilon": float(attrs.epsilon), "center": bool(attrs.center), "scale": bool(attrs.scale)}
    return relax.op.reshape(
        simplifier.emit(relax.op.nn.layer_norm(rows, *call.args[1:], axes=[-1], **options)), shape_of(call)
    )


def matmul(simplifier: Simplifier, call: Any) -> Any | None:
    """A product with a constant matrix."""
    rows, weight = _rows(simplifier, call.args[0]), simplifier.numbers(call.args[1])
    if rows is None or weight is None or weight.ndim != _FLAT_RANK:
        return None
    product = relax.op.matmul(rows, call.args[1], out_dtype=call.attrs.out_dtype)
    return relax.op.reshape(simplifier.emit(product), shape_of(call))


def _rows(simplifier: Simplifier, expr: Any) -> Any | None:
    """The value of two axes that an expression is a reshape of, with the same last axis; None for others."""
    call = simplifier.call(expr, "reshape")
    if call is None:
        return None
    before, after = shape_of(call.args[0]), shape_of(call)
    return call.args[0] if len(before) == _FLAT_RANK < len(after) and before[-1] == after[-1] else None


def _flat(simplifier: Simplifier, operand: Any, shape: tuple[int, ...]) -> Any | None:
    """An operand of an operator whose result has this shape, on two axes; None where its rows differ."""
    if not isinstance(operand, relax.Var) and not is_constant(operand):
        return operand  # a number of the operator, not a tensor
    numbers = simplifier.numbers(operand)
    if numbers is not None:
        alike = numbers.size in (1, (numbers.shape or (1,))[-1])
        return relax.const(numbers.reshape(numbers.shape[-1:])) if alike else None
    if shape_of(operand) != shape:
        return None
    rows = _rows(simplifier, operand)
    return simplifier.emit(relax.op.reshape(operand, (prod(shape[:-1]), shape[-1]))) if rows is None else rows
