"""Normalisations and GELU that an exporter wrote as several operators: one operator again, which has a kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.rewriting.expressions import operator_of, shape_of
from fractune_workers.children.rewriting.simplifying.simplifier import Simplifier

_ROOT_TWO = 2.0**0.5
_TOLERANCE = 1e-6
"""relative, of a constant that was written in float32"""


def layer_norm(simplifier: Simplifier, call: Any) -> Any | None:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) over the last axis, as a quotient, or as a product with the
    reciprocal root.
    """
    sides = [tuple(call.args)] if operator_of(call) == "divide" else [tuple(call.args), tuple(call.args)[::-1]]
    for centred, scale in sides:
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
    sides = [tuple(call.args)] if operator_of(call) == "divide" else [tuple(call.args), tuple(call.args)[::-1]]
    for data, scale in sides:
        least = _epsilon(simplifier, data, scale, operator_of(call))
        if least is not None and str(data.ty.dtype) == "float32":
            unit = np.ones(shape_of(data)[-1:], "float32")
            return relax.op.nn.rms_norm(data, relax.const(unit), axes=[-1], epsilon=least)
    return None


def scaled_rms_norm(simplifier: Simplifier, call: Any) -> Any | None:
    """A normalisation times a constant row, which becomes its parameter."""
    for value, row in (tuple(call.args), tuple(call.args)[::-1]):
        norm, numbers = simplifier.own(value, "nn.rms_norm"), simplifier.numbers(row)
        gamma = None if norm is None else simplifier.numbers(norm.args[1])
        if norm is None or numbers is None or gamma is None or gamma.ndim != 1 or numbers.size != gamma.size:
            continue
        if numbers.shape[-1:] == gamma.shape and numbers.dtype == gamma.dtype and len(norm.attrs.axes) == 1:
            return relax.Call(norm.op, [norm.args[0], relax.const(gamma * numbers.reshape(-1))], norm.attrs)
    return None


def scaled_norm(simplifier: Simplifier, call: Any) -> Any | None:
    """A normalisation times or plus a constant row: the row goes into its parameters."""
    for value, row in (tuple(call.args), tuple(call.args)[::-1]):
        norm, numbers = simplifier.own(value, "nn.layer_norm"), simplifier.numbers(row)
        if norm is None or numbers is None or not _is_plain(norm):
            continue
        gamma, beta = map(simplifier.numbers, norm.args[1:])
        if gamma is None or beta is None or gamma.shape != (numbers.shape or (0,))[-1:] or numbers.size != gamma.size:
            continue
        row_numbers = numbers.reshape(-1)
        is_product = operator_of(call) == "multiply"
        parameters = (gamma * row_numbers, beta * row_numbers) if is_product else (gamma, beta + row_numbers)
        return relax.Call(norm.op, [norm.args[0], *map(relax.const, parameters)], norm.attrs)
    return None


def _is_plain(norm: Any) -> bool:
    """Whether a normalisation is over the last axis, with both parameters."""
    rank, attrs = len(shape_of(norm.args[0])), norm.attrs
    return bool(attrs.center and attrs.scale) and [int(axis) % rank for axis in attrs.axes] == [rank - 1]


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
    for mean, number in (tuple(total.args), tuple(total.args)[::-1]):
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
