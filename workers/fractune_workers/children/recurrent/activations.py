"""Activation functions of recurrent cells, as expressions of TIR over vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm import tirx

_TANH_BOUND = 9.0
_TANH_ABOVE = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
"""Coefficients of the rational approximation of tanh in `topi.fast_tanh`, by falling powers of x * x. Its error is some
units in the last place of float32."""


@dataclass(frozen=True)
class Activation:
    """One of ONNX's activation functions, with its parameters."""

    name: str
    """in lower case: a key of ACTIVATIONS"""
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Any) -> Any:
        return ACTIVATIONS[self.name].compute(x, _like(x, self.alpha), _like(x, self.beta))


@dataclass(frozen=True)
class _Function:
    compute: Callable[[Any, Any, Any], Any]
    """of x, alpha and beta"""
    defaults: tuple[float | None, ...] = ()
    """of alpha and beta, as far as the function has them; None where ONNX has no default"""


def tanh(x: Any) -> Any:
    if str(x.ty.dtype) != "float32":
        return tirx.tanh(x)
    bounded = tirx.max(tirx.min(x, _like(x, _TANH_BOUND)), _like(x, -_TANH_BOUND))
    square = bounded * bounded
    return bounded * _polynomial(square, _TANH_ABOVE) / _polynomial(square, _TANH_BELOW)


def sigmoid(x: Any) -> Any:
    half = _like(x, 0.5)
    return tanh(x * half) * half + half


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    first, *others = (_like(x, each) for each in coefficients)
    return reduce(lambda value, each: value * x + each, others, first)


def _like(x: Any, number: float) -> Any:
    return tirx.const(number, str(x.ty.dtype))


def _clipped(x: Any, low: float, high: float) -> Any:
    return tirx.max(tirx.min(x, _like(x, high)), _like(x, low))


def _softplus(x: Any) -> Any:
    """log(1 + exp(x)) without an overflow: exp is taken of numbers below 0 alone."""
    one, zero = _like(x, 1.0), _like(x, 0.0)
    return tirx.max(x, zero) + tirx.log(one + tirx.exp(tirx.min(x, zero - x)))


def _elu(x: Any, alpha: Any) -> Any:
    zero = _like(x, 0.0)
    return tirx.max(x, zero) + alpha * (tirx.exp(tirx.min(x, zero)) - _like(x, 1.0))


ACTIVATIONS: dict[str, _Function] = {
    "affine": _Function(lambda x, alpha, beta: x * alpha + beta, (1.0, 0.0)),
    "elu": _Function(lambda x, alpha, _: _elu(x, alpha), (1.0,)),
    "hardsigmoid": _Function(lambda x, alpha, beta: _clipped(x * alpha + beta, 0.0, 1.0), (0.2, 0.5)),
    "leakyrelu": _Function(lambda x, alpha, _: tirx.Select(x >= _like(x, 0.0), x, x * alpha), (0.01,)),
    "relu": _Function(lambda x, _alpha, _beta: tirx.max(x, _like(x, 0.0))),
    "scaledtanh": _Function(lambda x, alpha, beta: tanh(x * beta) * alpha, (None, None)),
    "sigmoid": _Function(lambda x, _alpha, _beta: sigmoid(x)),
    "softplus": _Function(lambda x, _alpha, _beta: _softplus(x)),
    "softsign": _Function(lambda x, _alpha, _beta: x / (_like(x, 1.0) + tirx.abs(x))),
    "tanh": _Function(lambda x, _alpha, _beta: tanh(x)),
    "thresholdedrelu": _Function(lambda x, alpha, _: tirx.Select(x > alpha, x, _like(x, 0.0)), (1.0,)),
}
"""by the name in lower case, with ONNX's default parameters"""
