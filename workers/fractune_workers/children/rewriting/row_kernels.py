"""Softmax and normalisations over the last axis, as tensor expressions: a few passes over each row.

A row that was read once stays in the first cache, so every pass but the first is cheap. TVM's own expressions divide
each element, or compute a variance as a difference of two large numbers.
"""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import te, topi

from fractune_workers.children.rewriting.expressions import TAKES_AN_EPILOGUE, legalized_by_tvm

_WHOLE, _HALF, _LONG = 16, 8, 24
"""Numbers of the widest vector, and of one that is wide enough. Rows that the second divides are not copied, nor are
rows shorter than the third."""


def softmax(data: te.Tensor) -> te.Tensor:
    """exp(x - max(x)) / sum(exp(x - max(x))) of each row."""
    _, powers, total = _powers(data)
    one = tvm.tirx.const(1.0, data.dtype)
    factor = te.compute(total.shape, lambda *row: one / total(*row), name="row_factor")
    return te.compute(data.shape, lambda *at: powers(*at) * factor(*at[:-1]), name="softmax")


def log_softmax(data: te.Tensor) -> te.Tensor:
    """x - max(x) - log(sum(exp(x - max(x)))) of each row."""
    largest, _, total = _powers(data)
    logarithm = te.compute(total.shape, lambda *row: te.log(total(*row)), name="row_logarithm")

    def element(*at: Any) -> Any:
        return data(*at) - largest(*at[:-1]) - logarithm(*at[:-1])

    return te.compute(data.shape, element, name="log_softmax")


def _powers(data: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Of each row: max(x), exp(x - max(x)) in whole vectors, and the sum of these."""
    whole = _filled_up(data)
    largest = _reduced(te.max, whole, "row_max")
    powers = topi.fast_exp(te.compute(whole.shape, lambda *at: whole(*at) - largest(*at[:-1]), name="row_shifted"))
    return largest, powers, _reduced(te.sum, powers, "row_sum")


def _filled_up(data: te.Tensor) -> te.Tensor:
    """Each row copied into whole vectors, with -inf behind it, so that all passes but the last are of vectors."""
    *rows, columns = (int(dim) for dim in data.shape)
    if columns % _HALF == 0 or columns < _LONG:
        return data
    nothing = tvm.tirx.const(float("-inf"), data.dtype)

    def element(*at: Any) -> Any:
        return tvm.tirx.if_then_else(at[-1] < columns, data(*at), nothing)

    return te.compute((*rows, -(-columns // _WHOLE) * _WHOLE), element, name="row_filled_up")


def layer_norm(data: te.Tensor, *parameters: te.Tensor, epsilon: float) -> te.Tensor:
    """(x - mean) / sqrt(variance + epsilon) of each row, times the first parameter and plus the second, if given."""
    part = tvm.tirx.const(1.0 / int(data.shape[-1]), data.dtype)
    total = _reduced(te.sum, data, "row_sum")
    mean = te.compute(total.shape, lambda *row: total(*row) * part, name="row_mean")

    def centred(*at: Any) -> Any:
        return data(*at) - mean(*at[:-1])

    squares = _reduced(te.sum, data, "row_squares", lambda *at: centred(*at) * centred(*at))
    return _scaled(data, centred, _factor(squares, part, epsilon), parameters, "layer_norm")


def rms_norm(data: te.Tensor, *parameters: te.Tensor, epsilon: float) -> te.Tensor:
    """x / sqrt(mean(x * x) + epsilon) of each row, times the parameter, if given."""
    part = tvm.tirx.const(1.0 / int(data.shape[-1]), data.dtype)
    squares = _reduced(te.sum, data, "row_squares", lambda *at: data(*at) * data(*at))
    return _scaled(data, data, _factor(squares, part, epsilon), parameters, "rms_norm")


def _reduced(combine: Any, data: te.Tensor, name: str, element: Callable[..., Any] | None = None) -> te.Tensor:
    """Each row of `data`, or of `element` of its indices, as one number."""
    j = te.reduce_axis((0, data.shape[-1]), "j")
    read = element or data
    return te.compute(data.shape[:-1], lambda *row: combine(read(*row, j), axis=[j]), name=name)


def _factor(squares: te.Tensor, part: Any, epsilon: float) -> te.Tensor:
    one, least = (tvm.tirx.const(number, squares.dtype) for number in (1.0, epsilon))
    return te.compute(squares.shape, lambda *row: one / te.sqrt(squares(*row) * part + least), name="row_factor")


def _scaled(
    data: te.Tensor, numbers: Any, factor: te.Tensor, parameters: tuple[te.Tensor, ...], name: str
) -> te.Tensor:
    def element(*at: Any) -> Any:
        value = numbers(*at) * factor(*at[:-1])
        if parameters:
            value = value * parameters[0](at[-1])
        return value + parameters[1](at[-1]) if parameters[1:] else value

    return te.compute(data.shape, element, name=name)


def _is_rows(call: Any, axes: Any) -> bool:
    """Whether the operator is over the last axis of float32."""
    shape = call.args[0].ty.shape
    last = len(shape) - 1
    fixed = isinstance(shape[last], tvm.tirx.IntImm)
    return fixed and str(call.args[0].ty.dtype) == "float32" and [int(axis) % (last + 1) for axis in axes] == [last]


def _legalized_softmax(builder: Any, call: Any) -> Any:
    if _is_rows(call, [call.attrs.axis]):
        return builder.call_te(softmax, call.args[0], primfunc_name_hint="softmax", primfunc_attrs=TAKES_AN_EPILOGUE)
    return builder.call_te(topi.nn.fast_softmax, call.args[0], call.attrs.axis, primfunc_name_hint="softmax")


def _legalized_log_softmax(builder: Any, call: Any) -> Any:
    if not _is_rows(call, [call.attrs.axis]):
        return legalized_by_tvm(builder, call)
    hint = {"primfunc_name_hint": "log_softmax", "primfunc_attrs": TAKES_AN_EPILOGUE}
    return builder.call_te(log_softmax, call.args[0], **hint)


def _legalized_layer_norm(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    if not _is_rows(call, attrs.axes) or (attrs.center and not attrs.scale):
        return legalized_by_tvm(builder, call)
    parameters = call.args[1 : 1 + bool(attrs.scale) + bool(attrs.center)]
    return _normalised(builder, layer_norm, call, parameters)


def _legalized_rms_norm(builder: Any, call: Any) -> Any:
    if not _is_rows(call, call.attrs.axes):
        return legalized_by_tvm(builder, call)
    return _normalised(builder, rms_norm, call, call.args[1:])


def _normalised(builder: Any, compute: Callable[..., Any], call: Any, parameters: Any) -> Any:
    return builder.call_te(
        compute,
        call.args[0],
        *parameters,
        epsilon=float(call.attrs.epsilon),
        primfunc_name_hint=compute.__name__,
        primfunc_attrs=TAKES_AN_EPILOGUE,
    )


LEGALIZATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.nn.layer_norm": _legalized_layer_norm,
    "relax.nn.log_softmax": _legalized_log_softmax,
    "relax.nn.rms_norm": _legalized_rms_norm,
    "relax.nn.softmax": _legalized_softmax,
}
"""for `relax.transform.LegalizeOps`, on CPUs"""
