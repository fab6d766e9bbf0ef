"""Transcendental functions as polynomials, for CPUs.

LLVM calls the C library once for each element of an exponential, and a vector kernel waits for it. Here are the
rational approximations of Eigen and Cephes, which TVM has as `topi.fast_*`. For float32 their error is some units in
the last place. Numbers of 16 bits are computed as float32: the approximations would be wrong in the first digits.
Those of 64 bits are exact, by the C library.

Each function is one expression of one element: `let` names what it reads several times. So a chain of them stays as
long as its parts, and a convolution computes its activation while its sums are in registers.

A power with a small constant exponent is a product on every target, as in ONNX Runtime and PyTorch. A square root is
one on CPUs.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from tvm import te, tirx
from tvm.ir import Call

from fractune_workers.children.rewriting import expressions
from fractune_workers.children.tvm_api.tir import parts_of

SHORT = ("float16", "bfloat16")
_WIDE = "float64"
_LOG2_E, _LN_2, _EXPONENT_BITS, _BIAS = 1.44269504088896341, 0.6931471805599453, 23, 127
_LEAST_EXP, _MOST_EXP = -88.3762626647949, 88.3762626647950
_OF_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
MOST_TANH = 9.0
OF_TANH = (
    (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
     6.37261928875436e-04, 4.89352455891786e-03),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)  # fmt: skip
_MOST_ERF = 4.0
_OF_ERF = (
    (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
     -2.95459980854025e-03, -1.60960333262415e-02),
    (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
     -1.42647390514189e-02),
)  # fmt: skip
_OF_GELU_TANH = math.sqrt(2 / math.pi), 0.044715


def let(value: Any, use: Callable[[Any], Any]) -> Any:
    """`use(value)`, in which the value is computed once. TVM does not widen bfloat16 in a `Let`: then it is computed
    as often as it is used.
    """
    if _reads_bfloat16(value):
        return use(value)
    name = tirx.Var("t", value.ty)
    return tirx.Let(name, value, use(name))


def _reads_bfloat16(value: Any) -> bool:
    return any(str(call.ty.dtype) == "bfloat16" for call in parts_of(value, Call))


def number(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty.dtype)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """The coefficient of the highest power first."""
    first, *others = coefficients
    return reduce(lambda total, each: total * x + number(each, x), others, number(first, x))


def _within(x: Any, most: float) -> Any:
    """NaN stays NaN: it is the second operand."""
    return tirx.Max(number(-most, x), tirx.Min(number(most, x), x))


def exp(x: Any) -> Any:
    if x.ty.dtype == _WIDE:
        return tirx.exp(x)

    def by_parts(x: Any, near: Any, whole: Any) -> Any:
        """2 to a whole number, times the exponential of what remains."""
        bits = (whole + number(_BIAS, x)).astype("int32") << tirx.const(_EXPONENT_BITS, "int32")
        rest = let(near - whole * number(_LN_2, x), lambda f: polynomial(f, _OF_EXP) * f * f + f + number(1, x))
        return tirx.Max(tirx.reinterpret("float32", bits) * rest, x)

    def of_near(x: Any, near: Any) -> Any:
        return let(tirx.floor(near * number(_LOG2_E, x) + number(0.5, x)), lambda whole: by_parts(x, near, whole))

    return let(x, lambda x: let(_limited(x), lambda near: of_near(x, near)))


def _limited(x: Any) -> Any:
    return tirx.Max(tirx.Min(x, number(_MOST_EXP, x)), number(_LEAST_EXP, x))


def _odd_quotient(x: Any, most: float, quotient: tuple[Sequence[float], Sequence[float]]) -> Any:
    above, below = quotient
    return let(
        _within(x, most),
        lambda x: let(x * x, lambda square: x * polynomial(square, above) / polynomial(square, below)),
    )


def tanh(x: Any) -> Any:
    return tirx.tanh(x) if x.ty.dtype == _WIDE else _odd_quotient(x, MOST_TANH, OF_TANH)


def _erf(x: Any) -> Any:
    return tirx.erf(x) if x.ty.dtype == _WIDE else _odd_quotient(x, _MOST_ERF, _OF_ERF)


def _sigmoid(x: Any) -> Any:
    """By an exponential: by a hyperbolic tangent, small results would lose their digits, and be below 0."""
    return number(1, x) / (number(1, x) + exp(-x))


def _silu(x: Any) -> Any:
    return let(x, lambda x: x * _sigmoid(x))


def _gelu(x: Any) -> Any:
    return let(x, lambda x: x * number(0.5, x) * (_erf(x * number(0.5**0.5, x)) + number(1, x)))


def _gelu_tanh(x: Any) -> Any:
    root, cubic = _OF_GELU_TANH

    def of(x: Any) -> Any:
        return x * number(0.5, x) * (number(1, x) + tanh(number(root, x) * (x + number(cubic, x) * x * x * x)))

    return let(x, of)


def elements(compute: Callable[[Any], Any], x: te.Tensor) -> te.Tensor:
    """The function of each element, in float32 where these are shorter."""
    dtype = str(x.dtype)

    def element(*at: Any) -> Any:
        return compute(x(*at).astype("float32")).astype(dtype) if dtype in SHORT else compute(x(*at))

    return te.compute(x.shape, element, name="T_elements")


def of_elements(compute: Callable[[Any], Any], name: str) -> Callable[[Any, Any], Any]:
    """The legalization of a function of one element. Of bfloat16, a chain of them would grow exponentially (`let`)."""

    def legalized(builder: Any, call: Any) -> Any:
        x = call.args[0]
        attributes = expressions.TAKES_AN_EPILOGUE if str(x.ty.dtype) == "bfloat16" else None
        return builder.call_te(partial(elements, compute), x, primfunc_name_hint=name, primfunc_attrs=attributes)

    return legalized


_POWERS: dict[float, Callable[[Any], Any]] = {
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: (x * x) * (x * x),
}
"""by the exponent; each factor more costs a rounding"""


def _root(x: Any) -> Any:
    """As the power 0.5: of -0 it is 0, and of -inf inf."""
    return tirx.abs(tirx.sqrt(tirx.Select(x < number(-tirx.max_value(x.ty.dtype).value, x), -x, x)))


_POWERS_OF_CPUS = {**_POWERS, 0.5: _root, -0.5: lambda x: number(1, x) / _root(x)}


def _power(powers: dict[float, Callable[[Any], Any]]) -> Callable[[Any, Any], Any]:
    def legalized(builder: Any, call: Any) -> Any:
        base, exponent = call.args
        fixed = expressions.has_fixed_shapes(call) and expressions.shape_of(base) == expressions.shape_of(call)
        numbers = expressions.numbers_of(builder, exponent) if fixed else None
        known = powers.get(float(numbers.item())) if numbers is not None and numbers.size == 1 else None
        if known is None or "float" not in str(call.ty.dtype):
            return expressions.legalized_by_tvm(builder, call)
        return of_elements(lambda x: let(x, known), "power")(builder, call)

    return legalized


# Hyperbolic functions, their inverses and softplus, with the relative precision of their type.
#
# TVM computes them by logarithms and exponentials, which lose the digits of small results (of `log(1 + x)` for a small
# x) and are infinite where the result is not. Near zero they are power series here. Inverse trigonometric functions are
# here because TVM has no kernel of them for 16 bits.

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


def _hyperbolic(exp: _Function) -> dict[str, Callable[[Any, Any], Any]]:
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


LEGALIZATIONS: dict[str, Callable[[Any, Any], Any]] = {"relax.power": _power(_POWERS), **_hyperbolic(tirx.exp)}
"""for `relax.transform.LegalizeOps`"""
LEGALIZATIONS_FOR_CPUS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.erf": of_elements(_erf, "erf"),
    "relax.exp": of_elements(exp, "exp"),
    "relax.nn.gelu": of_elements(_gelu, "gelu"),
    "relax.nn.gelu_tanh": of_elements(_gelu_tanh, "gelu_tanh"),
    "relax.nn.silu": of_elements(_silu, "silu"),
    "relax.power": _power(_POWERS_OF_CPUS),
    "relax.sigmoid": of_elements(_sigmoid, "sigmoid"),
    "relax.tanh": of_elements(tanh, "tanh"),
    **_hyperbolic(exp),
}
"""the same with polynomials in vector code"""
