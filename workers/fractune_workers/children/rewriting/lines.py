"""Convolutions over a line as convolutions over an image of height 1: so they get blocks, schedules and epilogues.

Element-wise operators, slices and concatenations between two convolutions stay on the image.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.rewriting.expressions import constant_of, is_constant, shape_of
from fractune_workers.children.rewriting.simplifier import Simplifier

_HEIGHT = 2
"""the axis that the image has and the line lacks"""
_IMAGE_RANK = 4


def conv1d(simplifier: Simplifier, call: Any) -> Any | None:
    return _over_image(simplifier, call, relax.op.nn.conv2d, "OIW")


def conv1d_transpose(simplifier: Simplifier, call: Any) -> Any | None:
    more = (0, int(call.attrs.output_padding[0]))
    return _over_image(simplifier, call, partial(relax.op.nn.conv2d_transpose, output_padding=more), "IOW")


def _over_image(simplifier: Simplifier, call: Any, convolve: Callable[..., Any], kernel_layout: str) -> Any | None:
    data, attrs = call.args[0], call.attrs
    weight = simplifier.numbers(call.args[1])
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    if weight is None or layouts != ("NCW", kernel_layout, "NCW"):
        return None
    image = _image(simplifier, data)
    if image is None:
        image = simplifier.emit(relax.op.expand_dims(data, _HEIGHT))
    left, *rest = (int(side) for side in attrs.padding)
    conv = convolve(
        image,
        constant_of(np.expand_dims(weight, _HEIGHT)),
        strides=(1, int(attrs.strides[0])),
        padding=(0, left, 0, *(rest or [left])),
        dilation=(1, int(attrs.dilation[0])),
        groups=int(attrs.groups),
    )
    return _line(simplifier, conv)


def elementwise(simplifier: Simplifier, call: Any) -> Any | None:
    """On images, where every operand is one or a constant."""
    operands = [_operand(simplifier, operand) for operand in call.args]
    if any(operand is None for operand in operands) or not any(isinstance(each, relax.Var) for each in operands):
        return None
    return _line(simplifier, relax.Call(call.op, operands, call.attrs))


def sliced(simplifier: Simplifier, call: Any) -> Any | None:
    image = _image(simplifier, call.args[0])
    axes = simplifier.value(call.args[1])
    if image is None or not isinstance(axes, relax.Tuple):
        return None
    placed = relax.Tuple([relax.prim_value(_axis_of_image(int(axis.value))) for axis in axes.fields])
    return _line(simplifier, relax.Call(call.op, [image, placed, *call.args[2:]], call.attrs))


def concatenated(simplifier: Simplifier, call: Any) -> Any | None:
    fields = simplifier.value(call.args[0])
    images = [_image(simplifier, field) for field in fields.fields] if isinstance(fields, relax.Tuple) else [None]
    if None in images:
        return None
    return _line(simplifier, relax.op.concat(images, _axis_of_image(int(call.attrs.axis))))


def _axis_of_image(axis: int) -> int:
    axis %= _IMAGE_RANK - 1
    return axis if axis < _HEIGHT else axis + 1


def _line(simplifier: Simplifier, image: Any) -> Any:
    return relax.op.squeeze(simplifier.emit(image), [_HEIGHT])


def _image(simplifier: Simplifier, expr: Any) -> Any | None:
    """The image of height 1 that a line was made from; None for any other expression."""
    line = simplifier.call(expr, "squeeze")
    if line is None or len(shape_of(line.args[0])) != _IMAGE_RANK or line.attrs.axis is None:
        return None
    return line.args[0] if [int(axis) for axis in line.attrs.axis] == [_HEIGHT] else None


def _operand(simplifier: Simplifier, operand: Any) -> Any | None:
    """An operand of an element-wise operator, for images; None for a value that is not an image."""
    if not isinstance(operand, relax.Var) and not is_constant(operand):
        return operand  # a number of the operator, not a tensor
    numbers = simplifier.numbers(operand)
    if numbers is None:
        return _image(simplifier, operand)
    return constant_of(numbers if numbers.ndim < _HEIGHT else np.expand_dims(numbers, -2))
