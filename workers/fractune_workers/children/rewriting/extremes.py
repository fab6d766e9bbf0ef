"""Largest and smallest numbers, and where they are, as ONNX Runtime finds them.

NaN beside other numbers is not found, unless it is the first number. Of equal numbers, the first is found.
The place is looked for behind the number, so that a row of the type's smallest numbers has a place too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax, te, tirx

from fractune_workers.children.rewriting.special_numbers import is_nan
from fractune_workers.children.tvm_api.reducers import limit_of


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


LEGALIZATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.argmax": _placed(tirx.Max),
    "relax.argmin": _placed(tirx.Min),
    "relax.max": _reduced(tirx.Max),
    "relax.min": _reduced(tirx.Min),
}
"""for `relax.transform.LegalizeOps`"""
