"""Shortens an importer's long forms, before layouts are planned.

- Shape changes of constants are computed at once, so that weights are constants for every later pass.
- A batch normalisation is a scale and a shift. After a convolution with no other reader, the scale goes into the
  weights.
- Quantized values are float32, and convolutions over lines are over images (`lines.py`).
- Normalisations and GELU are one operator (`composites.py`), and reshapes meet and cancel (below).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from fractune_workers.children.rewriting import composites, expressions, lines
from fractune_workers.children.rewriting.simplifier import Array, Rule, Simplifier

# Moves a change of the axes before the last one below the operators that do not see it.
#
# An optimizer of ONNX files computes products with a bias on two axes, (tokens, width), between two reshapes. A
# reshape separates a product from the element-wise operators behind it, which could be its epilogue. So they compute
# on two axes as well, and the reshapes meet and cancel.

_FLAT_RANK = 2


def reshaped(simplifier: Simplifier, call: Any) -> Any | None:
    """A reshape of a reshape is one, or none."""
    inner = simplifier.call(call.args[0], "reshape")
    if inner is None:
        return None
    source = inner.args[0]
    return (
        source
        if expressions.shape_of(source) == expressions.shape_of(call)
        else relax.op.reshape(source, expressions.shape_of(call))
    )


def elementwise(simplifier: Simplifier, call: Any) -> Any | None:
    """Element-wise operators, and normalisations of rows."""
    if all(_rows(simplifier, operand) is None for operand in call.args):
        return None
    flat = [_flat(simplifier, operand, expressions.shape_of(call)) for operand in call.args]
    if any(each is None for each in flat):
        return None
    return relax.op.reshape(simplifier.emit(relax.Call(call.op, flat, call.attrs)), expressions.shape_of(call))


def norm(simplifier: Simplifier, call: Any) -> Any | None:
    """A normalisation of the last axis."""
    rank, attrs = len(expressions.shape_of(call)), call.attrs
    rows = _rows(simplifier, call.args[0])
    if rows is None or [int(axis) % rank for axis in attrs.axes] != [rank - 1]:
        return None
    if expressions.operator_of(call) == "nn.rms_norm":
        normed = relax.op.nn.rms_norm(rows, call.args[1], axes=[-1], epsilon=float(attrs.epsilon))
    else:
        options = {"epsilon": float(attrs.epsilon), "center": bool(attrs.center), "scale": bool(attrs.scale)}
        normed = relax.op.nn.layer_norm(rows, *call.args[1:], axes=[-1], **options)
    return relax.op.reshape(simplifier.emit(normed), expressions.shape_of(call))


def matmul(simplifier: Simplifier, call: Any) -> Any | None:
    """A product with a constant matrix."""
    rows, weight = _rows(simplifier, call.args[0]), simplifier.numbers(call.args[1])
    if rows is None or weight is None or weight.ndim != _FLAT_RANK:
        return None
    product = relax.op.matmul(rows, call.args[1], out_dtype=call.attrs.out_dtype)
    return relax.op.reshape(simplifier.emit(product), expressions.shape_of(call))


def _rows(simplifier: Simplifier, expr: Any) -> Any | None:
    """The value of two axes that an expression is a reshape of, with the same last axis; None for others."""
    call = simplifier.call(expr, "reshape")
    if call is None:
        return None
    before, after = expressions.shape_of(call.args[0]), expressions.shape_of(call)
    return call.args[0] if len(before) == _FLAT_RANK < len(after) and before[-1] == after[-1] else None


def _flat(simplifier: Simplifier, operand: Any, shape: tuple[int, ...]) -> Any | None:
    """An operand of an operator whose result has this shape, on two axes; None where its rows differ."""
    if not isinstance(operand, relax.Var) and not expressions.is_constant(operand):
        return operand  # a number of the operator, not a tensor
    numbers = simplifier.numbers(operand)
    if numbers is not None:
        alike = numbers.size in (1, (numbers.shape or (1,))[-1])
        return expressions.constant_of(numbers.reshape(numbers.shape[-1:])) if alike else None
    if expressions.shape_of(operand) != shape:
        return None
    rows = _rows(simplifier, operand)
    return simplifier.emit(relax.op.reshape(operand, (prod(shape[:-1]), shape[-1]))) if rows is None else rows


# Quantized values as float32: dequantized constants become numbers, and a value that is quantized and dequantized
# again becomes a chain of element-wise operators. Layout planning and fusion understand both.

_FLOAT = "float32"
_COUNTED = frozenset({"int8", "uint8", "int16", "uint16"})
"""types whose numbers float32 holds exactly"""


def dequantized(simplifier: Simplifier, call: Any) -> Any | None:
    data, *parameters = call.args
    scale, zero = map(simplifier.numbers, parameters)
    if scale is None or zero is None or str(call.attrs.out_dtype) != _FLOAT:
        return None
    numbers = simplifier.numbers(data)
    if numbers is not None:
        return relax.const(dequantized_numbers(numbers, scale, zero, int(call.attrs.axis)))
    quantized = simplifier.call(data, "quantize")
    return None if quantized is None else _rounded(simplifier, quantized, scale, zero)


def dequantized_numbers(numbers: Array, scale: Array, zero: Array, axis: int) -> Array:
    """As ONNX's DequantizeLinear: (numbers - zero) * scale in float32, with several of each along `axis`."""
    along = [1] * numbers.ndim
    if numbers.ndim:
        along[axis] = -1
    scales, zeros = (each.reshape(along if each.size > 1 else ()) for each in (scale, zero))
    counted: Array = (numbers.astype(np.int32) - zeros.astype(np.int32)).astype(_FLOAT) * scales.astype(_FLOAT)
    return counted


def _rounded(simplifier: Simplifier, quantized: Any, scale: Array, zero: Array) -> Any | None:
    """A value quantized and dequantized by one scale and one zero point: `clip(round(x / scale)) * scale`.

    ONNX adds the zero point before it clips, and subtracts it again. The limits without it give the same numbers. Scale
    and limits are tensors of one element, not numbers in the code, so that layers share an operator.
    """
    source, *parameters = quantized.args
    alike = [simplifier.numbers(each) for each in parameters]
    dtype = str(quantized.attrs.out_dtype)
    if dtype not in _COUNTED or str(source.ty.dtype) != _FLOAT or scale.size != 1 or zero.size != 1:
        return None
    if any(
        own is None or own.size != 1 or own.item() != other.item()
        for own, other in zip(alike, (scale, zero), strict=True)
    ):
        return None
    limits, point = np.iinfo(dtype), int(zero.item())
    step = _one(scale.item())
    counted = simplifier.emit(relax.op.round(simplifier.emit(relax.op.divide(source, step))))
    below = simplifier.emit(relax.op.minimum(counted, _one(limits.max - point)))
    within = simplifier.emit(relax.op.maximum(below, _one(limits.min - point)))
    return relax.op.multiply(within, step)


def _one(number: float) -> Any:
    return relax.const(np.array([number], _FLOAT))


_CHANNELS = 1


def simplify(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every Relax function rewritten; its results stay the same, up to rounding."""
    tidy = tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])
    first = _joined(_RULES, _RULES_OF_LINES) if _MAKES_LINES & expressions.operators_in(mod) else _RULES
    for rules in (first, _RULES_OF_ROWS):
        once = set[Any]().union(*map(expressions.used_once, expressions.relax_functions(mod).values()))
        mod = tidy(expressions.rewritten(mod, Simplifier(mod.clone(), rules, once)))
    return mod


def _shape_change(simplifier: Simplifier, call: Any) -> Any | None:
    numbers = simplifier.numbers(call.args[0])
    if numbers is None:
        return None
    if call.op.name == "relax.permute_dims":
        axes = call.attrs.axes
        numbers = numbers.transpose(None if axes is None else [int(axis) for axis in axes])
    return expressions.constant_of(numbers.reshape(expressions.shape_of(call)))


def _batch_norm(simplifier: Simplifier, call: Any) -> Any | None:
    data, *operands = call.args
    statistics = [simplifier.numbers(operand) for operand in operands]
    axis = int(call.attrs.axis) % len(data.ty.shape)
    known = [numbers.astype(np.float64) for numbers in statistics if numbers is not None]
    if len(known) < len(statistics) or bool(call.attrs.training):
        return None
    gamma, beta, mean, variance = known
    scale = (gamma if call.attrs.scale else 1.0) / np.sqrt(variance + call.attrs.epsilon)
    shift = (beta if call.attrs.center else 0.0) - mean * scale
    scaled = _scaled_conv(simplifier, data, scale) if axis == _CHANNELS else None
    if scaled is None:
        scaled = relax.op.multiply(data, _along(scale, data, axis))
    emit = simplifier.emit
    return relax.Tuple([emit(relax.op.add(emit(scaled), _along(shift, data, axis))), *operands[2:]])


def _along(numbers: Array, data: Any, axis: int) -> Any:
    """A constant that varies along one axis of `data`."""
    shape = [1] * len(data.ty.shape)
    shape[axis] = len(numbers)
    return relax.const(numbers.reshape(shape).astype(str(data.ty.dtype)))


def _scaled_conv(simplifier: Simplifier, data: Any, scale: Array) -> Any | None:
    """The convolution that `data` comes from, perhaps with a constant added, with `scale` in its numbers."""
    biased = simplifier.own(data, "add")
    bias = None if biased is None else simplifier.numbers(biased.args[1])
    conv = simplifier.own(data if biased is None or bias is None else biased.args[0], "nn.conv2d")
    if conv is None or str(conv.attrs.kernel_layout) != "OIHW":
        return None
    weight = simplifier.numbers(conv.args[1])
    if weight is None:
        return None
    scaled = relax.const((weight * scale.reshape(-1, 1, 1, 1)).astype(weight.dtype))
    result = relax.Call(conv.op, [conv.args[0], scaled], conv.attrs)
    if bias is None:
        return result
    rows = bias * scale.reshape(-1, 1, 1)
    return relax.op.add(simplifier.emit(result), relax.const(rows.astype(bias.dtype)))


def _joined_splits(simplifier: Simplifier, call: Any) -> Any | None:
    """A concatenation that joins all results of a split again has the split value as its part."""
    fields = simplifier.value(call.args[0])
    if not isinstance(fields, relax.Tuple):
        return None
    parts: list[Any] = []
    for field in fields:
        parts.append(field)
        whole = _whole(simplifier, parts, int(call.attrs.axis))
        if whole is not None:
            split, count = whole
            parts[-count:] = [split]
    if len(parts) == len(fields):
        return None
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, int(call.attrs.axis))


def _whole(simplifier: Simplifier, parts: list[Any], axis: int) -> tuple[Any, int] | None:
    """The value whose split along the axis the last parts are, and their number."""
    items = [simplifier.value(part) for part in parts]
    if not isinstance(items[-1], relax.TupleGetItem):
        return None
    split = simplifier.call(items[-1].tuple_value, "split")
    if split is None or int(split.attrs.axis) != axis:
        return None
    count = len(split.ty.fields)
    last = items[-count:]
    own = all(isinstance(item, relax.TupleGetItem) and item.tuple_value.same_as(items[-1].tuple_value) for item in last)
    return (split.args[0], count) if own and [item.index for item in last] == list(range(count)) else None


def _broadcast(_: Simplifier, call: Any) -> Any | None:
    """A value that has the wanted shape already."""
    data = call.args[0]
    return data if expressions.shape_of(data) == expressions.shape_of(call) else None


_Rules = Mapping[str, Sequence[Rule]]
_RULES: _Rules = {
    **dict.fromkeys(("permute_dims", "reshape", "expand_dims", "squeeze"), (_shape_change,)),
    "add": (composites.scaled_norm,),
    "broadcast_to": (_broadcast,),
    "concat": (_joined_splits,),
    "dequantize": (dequantized,),
    "divide": (composites.layer_norm, composites.rms_norm),
    "multiply": (composites.gelu, composites.layer_norm, composites.rms_norm, composites.scaled_norm),
    "nn.batch_norm": (_batch_norm,),
}
_RULES_OF_LINES: _Rules = {
    **dict.fromkeys(expressions.ELEMENTWISE, (lines.elementwise,)),
    "concat": (lines.concatenated,),
    "nn.conv1d": (lines.conv1d,),
    "nn.conv1d_transpose": (lines.conv1d_transpose,),
    "strided_slice": (lines.sliced,),
}
"""behind the others, in a model with a line: what makes one, or an image without its height"""
_MAKES_LINES = {"nn.conv1d", "nn.conv1d_transpose", "squeeze"}
_RULES_OF_ROWS: _Rules = {
    **dict.fromkeys(expressions.ELEMENTWISE, (elementwise,)),
    "matmul": (matmul,),
    "nn.layer_norm": (norm,),
    "nn.rms_norm": (norm,),
    "reshape": (reshaped,),
}
"""of the second pass"""


def _joined(*tables: _Rules) -> _Rules:
    """By the Relax operator: the rules of all tables; the first that fits is applied."""
    return {name: [rule for table in tables for rule in table.get(name, ())] for table in tables for name in table}
