"""Zeros, infinities, NaN and rounding, as IEEE 754 has them.

- TVM folds a constant into the kernel: `0 * x` and `0 / x` become 0, `x + 0` becomes x, and `x / 0` is an error. So a
  zero stays a tensor of the kernel.
- A vector unit's maximum of two numbers is the second one if either is NaN.
- On CPUs, TVM computes bfloat16 in float32, and forgets a cast to it between two operators.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from fractune_workers.children.rewriting.expressions import has_fixed_shapes, is_constant, legalized_by_tvm, shape_of

_Legalization = Callable[[Any, Any], Any]
_FOLDED = {"add": topi.add, "divide": topi.divide, "multiply": topi.multiply, "subtract": topi.subtract}
"""by the operator of Relax: what TVM folds with a constant"""
_RELU6 = 6.0
_LARGEST = 2**63 - 1


def is_nan(value: Any) -> Any:
    """Whether a number of a kernel is NaN. TVM has no `isnan` of bfloat16."""
    return tirx.isnan(value.astype("float32") if str(value.ty.dtype) == "bfloat16" else value)


def _is_float(value: Any) -> bool:
    return "float" in str(value.ty.dtype)


def _is_zero(operand: Any) -> bool:
    """Whether it is one floating-point number, a zero."""
    return is_constant(operand) and _is_float(operand) and shape_of(operand) == () and not operand.value.numpy().any()


def _unfolded(builder: Any, call: Any) -> Any:
    """A constant zero is an argument of the kernel."""
    if not any(map(_is_zero, call.args)):
        return legalized_by_tvm(builder, call)
    return _with_arguments(builder, call)


def _multiply(builder: Any, call: Any) -> Any:
    """So is the constant in a product of single numbers, as of two scales: layers share an operator then."""
    if has_fixed_shapes(call) and shape_of(call) == () and any(map(is_constant, call.args)):
        return _with_arguments(builder, call)
    return _unfolded(builder, call)


def _with_arguments(builder: Any, call: Any) -> Any:
    name = call.op.name.removeprefix("relax.")
    return builder.call_te(_FOLDED[name], *call.args, primfunc_name_hint=name)


def _where(builder: Any, call: Any) -> Any:
    """A constant integer is a number of the kernel: what keeps a division from 0 does so on random arguments too."""
    condition, *sides = call.args
    if _is_float(call) or not has_fixed_shapes(call) or not any(map(_is_integer, sides)):
        return legalized_by_tvm(builder, call)
    shape, dtype = shape_of(call), str(call.ty.dtype)

    def where(condition: te.Tensor, *sides: Any) -> te.Tensor:
        def element(*at: Any) -> Any:
            return tirx.Select(_at(condition, shape, at), *(_at(each, shape, at) for each in sides))

        return te.compute(shape, element, name="T_where")

    numbers = [tirx.IntImm(dtype, int(each.value.numpy())) if _is_integer(each) else each for each in sides]
    return builder.call_te(where, condition, *numbers, primfunc_name_hint="where")


def _is_integer(operand: Any) -> bool:
    """Whether it is one constant that TVM's numbers of a kernel can hold."""
    if not is_constant(operand) or shape_of(operand) != ():
        return False
    number = operand.value.numpy()
    return number.dtype.kind in "iu" and int(number) <= _LARGEST


def _extreme(kind: type, name: str) -> _Legalization:
    """Elementwise, NaN where either number is."""

    def legalized(builder: Any, call: Any) -> Any:
        if not _is_float(call) or not has_fixed_shapes(call):
            return legalized_by_tvm(builder, call)
        left, right = call.args
        if _is_number(right):
            left, right = right, left
        compute = partial(_of_number if _is_number(left) else _of_two, kind, shape_of(call))
        operands = [_scalar(each) for each in (left, right)]
        return builder.call_te(compute, *operands, primfunc_name_hint=name)

    return legalized


def _is_number(operand: Any) -> bool:
    """Whether it is one element, and no constant NaN."""
    return shape_of(operand) in ((), (1,)) and not (is_constant(operand) and np.isnan(_float64(operand)).any())


def _float64(constant: Any) -> Any:
    return constant.value.numpy().astype(np.float64)


def _scalar(operand: Any) -> Any:
    """A constant of no axes as a number of the kernel."""
    is_folded = is_constant(operand) and shape_of(operand) == ()
    return tirx.FloatImm(str(operand.ty.dtype), float(_float64(operand))) if is_folded else operand


def _of_number(kind: type, shape: Sequence[int], number: Any, data: Any) -> te.Tensor:
    """NaN in the data, which come second, is kept; the number is taken not to be NaN."""
    return te.compute(shape, lambda *at: kind(_at(number, shape, at), _at(data, shape, at)), name="T_extreme")


def _of_two(kind: type, shape: Sequence[int], left: Any, right: Any) -> te.Tensor:
    def element(*at: Any) -> Any:
        one, other = _at(left, shape, at), _at(right, shape, at)
        return tirx.Select(is_nan(one), one, kind(one, other))

    return te.compute(shape, element, name="T_extreme")


def _at(value: Any, shape: Sequence[int], at: Sequence[Any]) -> Any:
    """The element for the place `at` of the `shape` that a tensor is broadcast to, or the number.

    Without a broadcast the indices are those of the place, also on axes of size 1: TVM fuses elementwise kernels alone.
    """
    if not isinstance(value, te.Tensor):
        return value
    first = len(at) - len(value.shape)
    axes = zip(value.shape, shape[first:], at[first:], strict=True)
    return value(*[index if int(dim) == size else 0 for dim, size, index in axes])


def _limited(low: float, high: float | None, name: str) -> _Legalization:
    def legalized(builder: Any, call: Any) -> Any:
        return _clipped(builder, call, low, high, name)

    return legalized


def _clip(builder: Any, call: Any) -> Any:
    low, high = (float(getattr(each.value, "value", each.value)) for each in call.args[1:])
    return _clipped(builder, call, low, high, "clip")


def _clipped(builder: Any, call: Any, low: float, high: float | None, name: str) -> Any:
    """NaN stays NaN."""
    if not _is_float(call):
        return legalized_by_tvm(builder, call)
    dtype = str(call.ty.dtype)

    def clip(data: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            below = data(*at) if high is None else tirx.Min(tirx.FloatImm(dtype, high), data(*at))
            return tirx.Max(tirx.FloatImm(dtype, low), below)

        return te.compute(data.shape, element, name=f"T_{name}")

    return builder.call_te(clip, call.args[0], primfunc_name_hint=name)


def _cast(builder: Any, call: Any) -> Any:
    """To bfloat16, rounded to the nearest or else to even: the bits that it lacks are 0 before the cast."""
    if str(call.ty.dtype) != "bfloat16" or str(call.args[0].ty.dtype) in ("bfloat16", "bool"):
        return legalized_by_tvm(builder, call)

    def cast(data: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            number = data(*at).astype("float32")
            bits = tirx.reinterpret("uint32", number)
            odd = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
            nearest = (bits + odd + tirx.const(0x7FFF, "uint32")) & tirx.const(0xFFFF0000, "uint32")
            rounded = tirx.Select(tirx.isnan(number), number, tirx.reinterpret("float32", nearest))
            return tirx.Cast("bfloat16", rounded)

        return te.compute(data.shape, element, name="T_cast")

    return builder.call_te(cast, call.args[0], primfunc_name_hint="cast")


LEGALIZATIONS: dict[str, _Legalization] = {
    **dict.fromkeys(map("relax.{}".format, _FOLDED), _unfolded),
    "relax.where": _where,
}
"""for `relax.transform.LegalizeOps`"""
LEGALIZATIONS_FOR_CPUS: dict[str, _Legalization] = {
    **LEGALIZATIONS,
    "relax.astype": _cast,
    "relax.clip": _clip,
    "relax.maximum": _extreme(tirx.Max, "maximum"),
    "relax.minimum": _extreme(tirx.Min, "minimum"),
    "relax.multiply": _multiply,
    "relax.nn.relu": _limited(0.0, None, "relu"),
    "relax.nn.relu6": _limited(0.0, _RELU6, "relu6"),
}
"""the same on CPUs, where these names are"""
