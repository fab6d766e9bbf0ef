"""Normalisations and GELU that an exporter wrote as several operators: one operator again, which has a kernel."""

import math
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.rewriting.expressions import operator_of, shape_of
from fractune_workers.children.rewriting.simplifier import Simplifier

_LAYER_NORM, _RMS_NORM = "nn.layer_norm", "nn.rms_norm"
_ROOT_TWO = 2.0**0.5
_TOLERANCE = 1e-6
"""relative, of a constant that was written in float32"""


def layer_norm(simplifier: Simplifier, call: Any) -> Any | None:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) over the last axis, as a quotient, or as a product with the
    reciprocal root.
    """
    for centred, scale in _sides(call):
        difference = simplifier.call(centred, "subtract")
        if difference is None or (least := _epsilon(simplifier, centred, scale, operator_of(call))) is None:
            continue
        data, mean = difference.args
        if not _is_mean(simplifier, mean, data):
            continue
        unit = np.ones(shape_of(data)[-1:], "float32")
        return relax.op.nn.layer_norm(data, relax.const(unit), relax.const(0 * unit), axes=[-1], epsilon=least)
    return None


def rms_norm(simplifier: Simplifier, call: Any) -> Any | None:
    """x / sqrt(mean(x^2) + epsilon) over the last axis, as a quotient, or as a product with the reciprocal root."""
    for data, scale in _sides(call):
        least = _epsilon(simplifier, data, scale, operator_of(call))
        if least is not None and str(data.ty.dtype) == "float32":
            unit = np.ones(shape_of(data)[-1:], "float32")
            return relax.op.nn.rms_norm(data, relax.const(unit), axes=[-1], epsilon=least)
    return None


def scaled_norm(simplifier: Simplifier, call: Any) -> Any | None:
    """A normalisation times a constant row, or plus one: the row goes into its parameters."""
    is_product = operator_of(call) == "multiply"
    for value, row in _sides(call):
        found = (simplifier.own(value, name) for name in (_LAYER_NORM, _RMS_NORM))
        norm, numbers = next((each for each in found if each is not None), None), simplifier.numbers(row)
        if norm is None or numbers is None or not _is_plain(norm, is_product=is_product):
            continue
        known = [simplifier.numbers(each) for each in norm.args[1:]]
        alike = numbers.size, (numbers.shape or (0,))[-1:], numbers.dtype
        if any(each is None or (each.size, each.shape, each.dtype) != alike for each in known):
            continue
        gamma, *beta = (each for each in known if each is not None)
        by_row = numbers.reshape(-1)
        parameters = [each * by_row for each in (gamma, *beta)] if is_product else [gamma, beta[0] + by_row]
        return relax.Call(norm.op, [norm.args[0], *map(relax.const, parameters)], norm.attrs)
    return None


def _sides(call: Any) -> list[tuple[Any, Any]]:
    """The operands of a quotient; those of another operator in both orders."""
    sides = [tuple(call.args), tuple(call.args)[::-1]]
    return sides[:1] if operator_of(call) == "divide" else sides


def _is_plain(norm: Any, *, is_product: bool) -> bool:
    """Whether a normalisation is over the last axis, and has the parameters that a product or a sum goes into."""
    rank, attrs = len(shape_of(norm.args[0])), norm.attrs
    fits = is_product if operator_of(norm) == _RMS_NORM else bool(attrs.center and attrs.scale)
    return fits and [int(axis) % rank for axis in attrs.axes] == [rank - 1]


def gelu(simplifier: Simplifier, call: Any) -> Any | None:
    """x * 0.5 * (1 + erf(x / sqrt(2))), multiplied in any order."""
    factors = _factors(simplifier, call)
    halves = [factor for factor in factors if _is(simplifier.number(factor), 0.5)]
    values = [factor for factor in factors if simplifier.number(factor) is None]
    if (len(factors), len(halves), len(values)) != (3, 1, 2):
        return None
    for data, other in (values, values[::-1]):
        plus_one = simplifier.call(other, "add")
        if plus_one is None or not any(_is(simplifier.number(each), 1.0) for each in plus_one.args):
            continue
        errors = (simplifier.call(each, "erf") for each in plus_one.args)
        error = next((found for found in errors if found is not None), None)
        if error is not None and _is_over_root_two(simplifier, error.args[0], data):
            return relax.op.nn.gelu(data)
    return None


def _epsilon(simplifier: Simplifier, centred: Any, scale: Any, name: str) -> float | None:
    """Of the scale of a normalisation; None for another expression."""
    root = simplifier.call(scale, "sqrt" if name == "divide" else "rsqrt")
    if root is None and name == "multiply" and (inverse := simplifier.call(scale, "divide")) is not None:
        root = simplifier.call(inverse.args[1], "sqrt") if _is(simplifier.number(inverse.args[0]), 1.0) else None
    total = simplifier.call(root.args[0], "add") if root is not None else None
    if total is None:
        return None
    for mean, number in _sides(total):
        epsilon, reduced = simplifier.number(number), simplifier.call(mean, "mean")
        if epsilon is not None and reduced is not None and _is_mean(simplifier, mean, reduced.args[0]):
            return epsilon if _is_square(simplifier, reduced.args[0], centred) else None
    return None


def _is_mean(simplifier: Simplifier, expr: Any, data: Any) -> bool:
    """Whether it is the mean of float32 `data` over the last axis, which stays."""
    mean = simplifier.call(expr, "mean")
    if mean is None or not mean.args[0].same_as(data) or not mean.attrs.keepdims or mean.attrs.axis is None:
        return False
    rank = len(shape_of(data))
    return str(data.ty.dtype) == "float32" and [int(axis) % rank for axis in mean.attrs.axis] == [rank - 1]


def _is_square(simplifier: Simplifier, expr: Any, data: Any) -> bool:
    value = simplifier.value(expr)
    name = operator_of(value)
    if name not in ("multiply", "power", "square") or not value.args[0].same_as(data):
        return False
    if name == "power":
        return _is(simplifier.number(value.args[1]), 2.0)
    return name == "square" or bool(value.args[1].same_as(data))


def _factors(simplifier: Simplifier, call: Any) -> list[Any]:
    """Of a product, also those of a factor that is used here only."""
    found = []
    for operand in call.args:
        inner = simplifier.own(operand, "multiply")
        found += list(inner.args) if inner is not None else [operand]
    return found


def _is_over_root_two(simplifier: Simplifier, expr: Any, data: Any) -> bool:
    value = simplifier.value(expr)
    wanted = {"divide": _ROOT_TWO, "multiply": 1 / _ROOT_TWO}.get(operator_of(value))
    return wanted is not None and value.args[0].same_as(data) and _is(simplifier.number(value.args[1]), wanted)


def _is(number: float | None, wanted: float) -> bool:
    return number is not None and math.isclose(number, wanted, rel_tol=_TOLERANCE)
