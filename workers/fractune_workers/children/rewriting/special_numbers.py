"""Zeros, infinities, NaN and rounding, as IEEE 754 has them; extremes, as ONNX Runtime finds them.

- TVM folds a constant into the kernel: `0 * x` and `0 / x` become 0, `x + 0` becomes x, and `x / 0` is an error. So a
  zero stays a tensor of the kernel.
- A vector unit's maximum of two numbers is the second one if either is NaN. NaN beside other numbers is not found,
  unless it is the first number. Of equal numbers, the first is found.
- On CPUs, TVM computes bfloat16 in float32, and forgets a cast to it between two operators.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from fractune_workers.children.rewriting.expressions import has_fixed_shapes, is_constant, legalized_by_tvm, shape_of
from fractune_workers.children.tvm_api.tir import limit_of

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


def _elementwise_extreme(kind: type, name: str) -> _Legalization:
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


def _reduction(kind: type) -> Any:
    """The largest or smallest number of those that are not NaN."""

    def combined(result: Any, number: Any) -> Any:
        return kind(number, result)

    return te.comm_reducer(combined, lambda dtype: _start(kind, str(dtype)), name=kind.__name__.lower())


def _start(kind: type, dtype: str) -> Any:
    if "float" in dtype:
        return limit_of(kind, dtype)
    return tirx.min_value(dtype) if kind is tirx.Max else tirx.max_value(dtype)


_REDUCTIONS = {kind: _reduction(kind) for kind in (tirx.Max, tirx.Min)}


def _extreme(kind: type, data: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    """Of the elements along the axes, which go."""
    kept = [axis for axis in range(len(data.shape)) if axis not in axes]
    reduced = [te.reduce_axis((0, data.shape[axis]), f"k{axis}") for axis in axes]

    def place(at: Sequence[Any], along: Sequence[Any]) -> list[Any]:
        by_axis = {**dict(zip(kept, at, strict=True)), **dict(zip(axes, along, strict=True))}
        return [by_axis[axis] for axis in range(len(data.shape))]

    shape = [data.shape[axis] for axis in kept]
    found = te.compute(
        shape, lambda *at: _REDUCTIONS[kind](data(*place(at, reduced)), axis=reduced), name=f"{data.op.name}_red"
    )
    if "float" not in str(data.dtype):
        return found

    def element(*at: Any) -> Any:
        first = data(*place(at, [0] * len(axes)))
        return tirx.Select(is_nan(first), first, found(*at))

    return te.compute(shape, element, name=f"{data.op.name}_found")


def _place(kind: type, data: te.Tensor, axis: int) -> te.Tensor:
    """The first index of the extreme number along the axis, which goes; 0 where none is equal to it, as beside NaN."""
    found = _extreme(kind, data, [axis])
    count = tirx.IntImm("int64", int(data.shape[axis]))
    index = te.reduce_axis((0, count), "k")

    def first(*at: Any) -> Any:
        is_found = data(*at[:axis], index, *at[axis:]).equal(found(*at))
        return te.min(tirx.Select(is_found, index.var.astype("int64"), count), axis=[index])

    def within(*at: Any) -> Any:
        return tirx.Select(places(*at) < count, places(*at), tirx.IntImm("int64", 0))

    places = te.compute(found.shape, first, name=f"{data.op.name}_first")
    return te.compute(found.shape, within, name=f"{data.op.name}_at")


def _reduced(kind: type) -> Callable[[Any, Any], Any]:
    def legalized(builder: Any, call: Any) -> Any:
        data, rank = call.args[0], len(call.args[0].ty.shape)
        axes = range(rank) if call.attrs.axis is None else sorted({int(axis) % rank for axis in call.attrs.axis})
        if not axes:
            return data
        name = kind.__name__.lower()
        value = builder.call_te(partial(_extreme, kind), data, list(axes), primfunc_name_hint=name)
        return _with_axes(builder, call, value)

    return legalized


def _placed(kind: type) -> Callable[[Any, Any], Any]:
    def legalized(builder: Any, call: Any) -> Any:
        data = call.args[0]
        if call.attrs.axis is None:
            data = builder.emit(relax.op.flatten(data))
        axis = int(call.attrs.axis or 0) % len(data.ty.shape)
        name = f"arg{kind.__name__.lower()}"
        value = builder.call_te(partial(_place, kind), data, axis, primfunc_name_hint=name)
        return _with_axes(builder, call, value)

    return legalized


def _with_axes(builder: Any, call: Any, value: Any) -> Any:
    """With the axes that went as axes of 1, if the call keeps them."""
    return relax.op.reshape(builder.emit(value), call.ty.shape) if call.attrs.keepdims else value


_REDUCING: dict[str, _Legalization] = {
    "relax.argmax": _placed(tirx.Max),
    "relax.argmin": _placed(tirx.Min),
    "relax.max": _reduced(tirx.Max),
    "relax.min": _reduced(tirx.Min),
}
LEGALIZATIONS: dict[str, _Legalization] = {
    **_REDUCING,
    **dict.fromkeys(map("relax.{}".format, _FOLDED), _unfolded),
    "relax.where": _where,
}
"""for `relax.transform.LegalizeOps`"""
LEGALIZATIONS_FOR_CPUS: dict[str, _Legalization] = {
    **LEGALIZATIONS,
    "relax.astype": _cast,
    "relax.clip": _clip,
    "relax.maximum": _elementwise_extreme(tirx.Max, "maximum"),
    "relax.minimum": _elementwise_extreme(tirx.Min, "minimum"),
    "relax.multiply": _multiply,
    "relax.nn.relu": _limited(0.0, None, "relu"),
    "relax.nn.relu6": _limited(0.0, _RELU6, "relu6"),
}
"""the same on CPUs, where these names are"""
