"""Hyperbolic functions, their inverses and softplus, with the relative precision of their type.

TVM computes them by logarithms and exponentials, which lose the digits of small results (of `log(1 + x)` for a small x)
and are infinite where the result is not. Near zero they are power series here. Numbers of 16 bits are computed as
float32. So are inverse trigonometric functions: TVM has no kernel of them for 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx, topi

from fractune_workers.children.rewriting.expressions import TAKES_AN_EPILOGUE

_Function = Callable[[te.Tensor], te.Tensor]
_TERMS = 11
"""of a series, whose rest is below 2^-31 of the result within the bounds here"""
_OF_ATANH = [1 / (2 * n + 1) for n in range(_TERMS)]
_OF_ASINH = [(-1) ** n * math.comb(2 * n, n) / (4**n * (2 * n + 1)) for n in range(_TERMS)]
_OF_SINH = [1 / math.factorial(2 * n + 1) for n in range(_TERMS)]
_SMALL = 0.25
"""below it, the inverse functions are series"""
_LARGE = 1e8
"""above it, the square of a number and 1 is its square"""
_SHORT = ("float16", "bfloat16")


def _series(x: Any, coefficients: Sequence[float]) -> Any:
    """The odd polynomial with these coefficients of x, x^3, x^5 and so on."""
    square, total = x * x, _number(coefficients[-1], x)
    for each in reversed(coefficients[:-1]):
        total = total * square + _number(each, x)
    return total * x


def _number(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty.dtype)


def _atanh(x: Any) -> Any:
    logarithm = tirx.log((_number(1, x) + x) / (_number(1, x) - x)) * _number(0.5, x)
    return tirx.Select(tirx.abs(x) < _number(_SMALL, x), _series(x, _OF_ATANH), logarithm)


def _asinh(x: Any) -> Any:
    size, zero = tirx.abs(x), _number(0, x)
    is_large = size > _number(_LARGE, x)
    both = size + tirx.sqrt(size * size + _number(1, x))
    logarithm = tirx.log(tirx.Select(is_large, size, both)) + tirx.Select(is_large, _number(math.log(2), x), zero)
    signed = tirx.Select(x < zero, -logarithm, logarithm)
    return tirx.Select(size < _number(_SMALL, x), _series(x, _OF_ASINH), signed)


def _acosh(x: Any) -> Any:
    half = tirx.sqrt((x - _number(1, x)) * _number(0.5, x))
    return _asinh(half) * _number(2, x)


def _sinh(x: Any, root: Any) -> Any:
    """`root`: the exponential of half of x's size, whose square may be infinite where the result is not."""
    half = _number(0.5, x)
    size = half * root * root - half / (root * root)
    signed = tirx.Select(x < _number(0, x), -size, size)
    return tirx.Select(tirx.abs(x) < _number(1, x), _series(x, _OF_SINH), signed)


def _cosh(x: Any, root: Any) -> Any:
    half = _number(0.5, x)
    return half * root * root + half / (root * root)


def _log_of_one_and(x: Any) -> Any:
    """Of numbers from 0 to 1."""
    return _series(x / (x + _number(2, x)), _OF_ATANH) * _number(2, x)


def _each(function: Callable[..., Any], *arguments: te.Tensor) -> te.Tensor:
    return te.compute(arguments[0].shape, lambda *at: function(*(each(*at) for each in arguments)), name="T_elements")


def _by_half(function: Callable[..., Any], exp: _Function) -> _Function:
    def compute(x: te.Tensor) -> te.Tensor:
        halves = _each(lambda each: tirx.abs(each) * _number(0.5, each), x)
        return _each(function, x, exp(halves))

    return compute


def _softplus(x: te.Tensor, beta: float, exp: _Function) -> te.Tensor:
    scaled = topi.multiply(x, tirx.const(beta, x.dtype))
    below = _each(_log_of_one_and, exp(_each(lambda each: -tirx.abs(each), scaled)))
    return topi.divide(topi.add(topi.nn.relu(scaled), below), tirx.const(beta, x.dtype))


def _legalized(compute: _Function, name: str) -> Callable[[Any, Any], Any]:
    def widened(x: te.Tensor) -> te.Tensor:
        return topi.cast(compute(topi.cast(x, "float32")), x.dtype) if str(x.dtype) in _SHORT else compute(x)

    return lambda builder, call: builder.call_te(
        widened, call.args[0], primfunc_name_hint=name, primfunc_attrs=TAKES_AN_EPILOGUE
    )


def _legalizations(exp: _Function) -> dict[str, Callable[[Any, Any], Any]]:
    functions: dict[str, _Function] = {
        "acos": topi.acos,
        "acosh": lambda x: _each(_acosh, x),
        "asin": topi.asin,
        "asinh": lambda x: _each(_asinh, x),
        "atan": topi.atan,
        "atanh": lambda x: _each(_atanh, x),
        "cosh": _by_half(_cosh, exp),
        "sinh": _by_half(_sinh, exp),
    }

    def softplus(builder: Any, call: Any) -> Any:
        return _legalized(lambda x: _softplus(x, float(call.attrs.beta), exp), "softplus")(builder, call)

    by_name = {f"relax.{name}": _legalized(compute, name) for name, compute in functions.items()}
    return {**by_name, "relax.nn.softplus": softplus}


LEGALIZATIONS = _legalizations(topi.exp)
"""for `relax.transform.LegalizeOps`"""
LEGALIZATIONS_FOR_CPUS = _legalizations(topi.fast_exp)
"""the same with exponentials in vector code"""
