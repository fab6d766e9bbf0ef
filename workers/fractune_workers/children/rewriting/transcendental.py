"""Transcendental functions as polynomials, for CPUs.

LLVM calls the C library once for each element of an exponential, and a vector kernel waits for it. TVM has rational
approximations in vector code (those of Eigen and Cephes, as `topi.fast_*`). For float32 their error is some units in
the last place. Numbers of 16 bits are computed as float32: the approximations would be wrong in the first digits.
For float64 `topi.fast_*` are TVM's exact functions.

A power with a small constant exponent is a product on every target, as in ONNX Runtime and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx, topi

from fractune_workers.children.rewriting.expressions import TAKES_AN_EPILOGUE, has_fixed_shapes, numbers_of, shape_of

_ROOT_HALF = 0.5**0.5


def _sigmoid(x: te.Tensor) -> te.Tensor:
    """By an exponential: by a hyperbolic tangent, small results would lose their digits, and be below 0."""
    one = tirx.const(1.0, x.dtype)
    return topi.divide(one, topi.add(one, topi.fast_exp(topi.negative(x))))


def _silu(x: te.Tensor) -> te.Tensor:
    return topi.multiply(x, _sigmoid(x))


def _gelu(x: te.Tensor) -> te.Tensor:
    half, root_half, one = (tirx.const(value, x.dtype) for value in (0.5, _ROOT_HALF, 1.0))
    return topi.multiply(topi.multiply(x, half), topi.add(topi.fast_erf(topi.multiply(x, root_half)), one))


_SHORT = ("float16", "bfloat16")


def _by(compute: Callable[[te.Tensor], te.Tensor], name: str) -> Callable[[Any, Any], Any]:
    def widened(x: te.Tensor) -> te.Tensor:
        return topi.cast(compute(topi.cast(x, "float32")), x.dtype) if str(x.dtype) in _SHORT else compute(x)

    # Each is a kernel of its own: an approximation reads its argument several times, so the inlined code of a chain of
    # approximations would grow exponentially.
    return lambda builder, call: builder.call_te(
        widened, call.args[0], primfunc_name_hint=name, primfunc_attrs=TAKES_AN_EPILOGUE
    )


_PRODUCTS: dict[float, Callable[[Any], Any]] = {
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: (x * x) * (x * x),
}
"""by the exponent; each factor more costs a rounding"""


def _power(builder: Any, call: Any) -> Any:
    base, exponent = call.args
    numbers = numbers_of(builder, exponent) if has_fixed_shapes(call) and shape_of(base) == shape_of(call) else None
    product = _PRODUCTS.get(float(numbers.item())) if numbers is not None and numbers.size == 1 else None
    dtype = str(call.ty.dtype)
    if product is None or "float" not in dtype:
        return call.op.get_attr("FLegalize")(builder, call)
    wide = "float32" if dtype in _SHORT else dtype

    def power(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: product(x(*at).astype(wide)).astype(dtype), name="T_power")

    return builder.call_te(power, base, primfunc_name_hint="power")


LEGALIZATIONS: dict[str, Callable[[Any, Any], Any]] = {"relax.power": _power}
"""for `relax.transform.LegalizeOps`"""
LEGALIZATIONS_FOR_CPUS: dict[str, Callable[[Any, Any], Any]] = {
    **LEGALIZATIONS,
    "relax.erf": _by(topi.fast_erf, "erf"),
    "relax.exp": _by(topi.fast_exp, "exp"),
    "relax.nn.gelu": _by(_gelu, "gelu"),
    "relax.nn.silu": _by(_silu, "silu"),
    "relax.sigmoid": _by(_sigmoid, "sigmoid"),
    "relax.tanh": _by(topi.fast_tanh, "tanh"),
}
"""the same with polynomials in vector code"""
