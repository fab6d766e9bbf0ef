"""Hyperbolic functions, their inverses and softplus, with the relative precision of their type.

TVM computes them by logarithms and exponentials, which lose the digits of small results (of `log(1 + x)` for a small x)
and are infinite where the result is not. Near zero they are power series here. Numbers of 16 bits are computed as
float32. So are inverse trigonometric functions: TVM has no kernel of them for 16 bits.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import tirx

from fractune_workers.children.rewriting import transcendental
from fractune_workers.children.rewriting.transcendental import let, number, of_elements

_Function = Callable[[Any], Any]
"""of one element"""
_TERMS = 11
"""of a series, whose rest is below 2^-31 of the result within the bounds here"""
_OF_ATANH = [1 / (2 * n + 1) for n in range(_TERMS)]
_OF_ASINH = [(-1) ** n * math.comb(2 * n, n) / (4**n * (2 * n + 1)) for n in range(_TERMS)]
_OF_SINH = [1 / math.factorial(2 * n + 1) for n in range(_TERMS)]
_SMALL = 0.25
"""below it, the inverse functions are series"""
_LARGE = 1e8
"""above it, the square of a number and 1 is its square"""


def _series(x: Any, coefficients: Sequence[float]) -> Any:
    """The odd polynomial with these coefficients of x, x^3, x^5 and so on."""

    def of(square: Any) -> Any:
        *others, last = coefficients
        return reduce(lambda total, each: total * square + number(each, x), reversed(others), number(last, x)) * x

    return let(x * x, of)


def _atanh(x: Any) -> Any:
    logarithm = tirx.log((number(1, x) + x) / (number(1, x) - x)) * number(0.5, x)
    return tirx.Select(tirx.abs(x) < number(_SMALL, x), _series(x, _OF_ATANH), logarithm)


def _asinh(x: Any) -> Any:
    size, zero = tirx.abs(x), number(0, x)
    is_large = size > number(_LARGE, x)
    both = size + tirx.sqrt(size * size + number(1, x))
    logarithm = tirx.log(tirx.Select(is_large, size, both)) + tirx.Select(is_large, number(math.log(2), x), zero)
    signed = tirx.Select(x < zero, -logarithm, logarithm)
    return tirx.Select(size < number(_SMALL, x), _series(x, _OF_ASINH), signed)


def _acosh(x: Any) -> Any:
    half = tirx.sqrt((x - number(1, x)) * number(0.5, x))
    return let(half, _asinh) * number(2, x)


def _sinh(x: Any, root: Any) -> Any:
    """`root`: the exponential of half of x's size, whose square may be infinite where the result is not."""
    half = number(0.5, x)
    size = half * root * root - half / (root * root)
    signed = tirx.Select(x < number(0, x), -size, size)
    return tirx.Select(tirx.abs(x) < number(1, x), _series(x, _OF_SINH), signed)


def _cosh(x: Any, root: Any) -> Any:
    half = number(0.5, x)
    return half * root * root + half / (root * root)


def _log_of_one_and(x: Any) -> Any:
    """Of numbers from 0 to 1."""
    return let(x / (x + number(2, x)), lambda part: _series(part, _OF_ATANH)) * number(2, x)


def _by_half(function: Callable[[Any, Any], Any], exp: _Function) -> _Function:
    return lambda x: let(x, lambda x: let(exp(tirx.abs(x) * number(0.5, x)), lambda root: function(x, root)))


def _softplus(x: Any, beta: float, exp: _Function) -> Any:
    def of(scaled: Any) -> Any:
        above = tirx.Max(number(0, scaled), scaled)
        return (above + let(exp(-tirx.abs(scaled)), _log_of_one_and)) / number(beta, scaled)

    return let(x * number(beta, x), of)


def _legalizations(exp: _Function) -> dict[str, Callable[[Any, Any], Any]]:
    functions: dict[str, _Function] = {
        "acos": tirx.acos,
        "acosh": lambda x: let(x, _acosh),
        "asin": tirx.asin,
        "asinh": lambda x: let(x, _asinh),
        "atan": tirx.atan,
        "atanh": lambda x: let(x, _atanh),
        "cosh": _by_half(_cosh, exp),
        "sinh": _by_half(_sinh, exp),
    }

    def softplus(builder: Any, call: Any) -> Any:
        return of_elements(lambda x: _softplus(x, float(call.attrs.beta), exp), "softplus")(builder, call)

    by_name = {f"relax.{name}": of_elements(compute, name) for name, compute in functions.items()}
    return {**by_name, "relax.nn.softplus": softplus}


LEGALIZATIONS = _legalizations(tirx.exp)
"""for `relax.transform.LegalizeOps`"""
LEGALIZATIONS_FOR_CPUS = _legalizations(transcendental.exp)
"""the same with exponentials in vector code"""
