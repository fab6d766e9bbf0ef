"""Resize, as ONNX means it. TVM's operator takes the ratio of the sizes for the scale, and rounds coordinates in
float32. Where either would differ from ONNX, pixels are taken by tables that are computed here in fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, shape_of

_SCALES, _SIZES = 2, 3
_HALF = Fraction(1, 2)

_Place = Callable[[int, int, int, Fraction], Fraction]
"""Of a pixel in the result, the sizes before and after, and the scale: the place in the input"""


def _half_pixel(at: int, _before: int, _after: int, scale: Fraction) -> Fraction:
    return (at + _HALF) / scale - _HALF


def _pytorch_half_pixel(at: int, before: int, after: int, scale: Fraction) -> Fraction:
    return _half_pixel(at, before, after, scale) if after > 1 else Fraction(0)


def _align_corners(at: int, before: int, _after: int, scale: Fraction) -> Fraction:
    length = scale * before  # not rounded, as in ONNX's reference
    return at * (before - 1) / (length - 1) if length != 1 else Fraction(0)


def _asymmetric(at: int, _before: int, _after: int, scale: Fraction) -> Fraction:
    return at / scale


_PLACES: Mapping[str, _Place] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
}
_ROUNDINGS: Mapping[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda place: math.ceil(place - _HALF),
    "round_prefer_ceil": lambda place: math.floor(place + _HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _resize(node: OnnxNode) -> Any:
    mode, place = _text(node, "mode", "nearest"), _text(node, "coordinate_transformation_mode", "half_pixel")
    for name in ("antialias", "exclude_outside"):
        if node.attributes.get(name, 0):
            raise node.refused(f"{name}=1 is not supported; export it with {name}=0")
    if place == "tf_crop_and_resize":
        return node.by_tvm()
    if place not in _PLACES:
        raise node.refused(f"coordinate_transformation_mode='{place}' is not supported; use half_pixel or asymmetric")
    before = shape_of(node.input(0))
    scales, after = _scales(node, before)
    ratios = [Fraction(new, old) for new, old in zip(after, before, strict=True)]
    is_whole = all(1 in (ratio.numerator, ratio.denominator) for ratio in ratios)
    if scales == ratios and after[:2] == before[:2] and (is_whole or mode != "nearest"):
        return node.by_tvm()
    if mode not in ("nearest", "linear"):
        raise node.refused(f"mode='{mode}' to sizes of another ratio than the scales; export it with sizes")
    value = node.input(0)
    for axis, (old, new, scale) in enumerate(zip(before, after, scales, strict=True)):
        if old != new:
            places = [_PLACES[place](at, old, new, scale) for at in range(new)]
            value = node.emit((_nearest if mode == "nearest" else _linear)(node, value, axis, places))
    return value


def _scales(node: OnnxNode, before: list[int]) -> tuple[list[Fraction], list[int]]:
    """For each axis: the scale, and the size after it."""
    scales, sizes = node.constant(_SCALES), node.constant(_SIZES)
    by_scales = scales is not None and scales.size > 0
    given = scales if by_scales else sizes
    axes = [int(axis) % len(before) for axis in node.attributes.get("axes", range(len(before)))]
    if given is None or len(given) != len(axes):
        raise node.refused("its sizes are not constants for all its axes; export it with fixed sizes")
    if _text(node, "keep_aspect_ratio_policy", "stretch") != "stretch" and not by_scales:
        raise node.refused("keep_aspect_ratio_policy is not supported; export it with 'stretch'")
    factors, after = [Fraction(1)] * len(before), list(before)
    for axis, number in zip(axes, given, strict=True):
        factors[axis] = Fraction(float(number)) if by_scales else Fraction(int(number), before[axis])
        after[axis] = math.floor(factors[axis] * before[axis]) if by_scales else int(number)
        near = Fraction(after[axis], before[axis])
        if factors[axis] <= 0 or after[axis] < 1:
            raise node.refused(f"it leaves no pixel of axis {axis}; export it with larger sizes")
        if abs(float(near - factors[axis])) <= 1e-6 * float(near):  # a scale is float32, as 0.333
            factors[axis] = near
    return factors, after


def _nearest(node: OnnxNode, value: relax.Expr, axis: int, places: list[Fraction]) -> relax.Expr:
    rounded = _ROUNDINGS.get(_text(node, "nearest_mode", "round_prefer_floor"))
    if rounded is None:
        raise node.refused(f"nearest_mode is not one of {', '.join(_ROUNDINGS)}; export it again")
    return _taken(value, axis, [rounded(place) for place in places])


def _linear(node: OnnxNode, value: relax.Expr, axis: int, places: list[Fraction]) -> relax.Expr:
    """Between two pixels; beside the edge, the edge."""
    last = shape_of(value)[axis] - 1
    inside = [min(max(place, Fraction(0)), Fraction(last)) for place in places]
    lower = [math.floor(place) for place in inside]
    shape = [-1 if each == axis else 1 for each in range(len(shape_of(value)))]
    share = np.array([float(place - low) for place, low in zip(inside, lower, strict=True)]).reshape(shape)
    below, above = _taken(value, axis, lower), _taken(value, axis, [low + 1 for low in lower])
    weights = [relax.const(each.astype(dtype_of(value))) for each in (1 - share, share)]
    return relax.op.add(
        node.emit(relax.op.multiply(node.emit(below), weights[0])),
        node.emit(relax.op.multiply(node.emit(above), weights[1])),
    )


def _taken(value: relax.Expr, axis: int, indices: list[int]) -> relax.Expr:
    """The pixels of these indices; outside, those at the edge."""
    table = np.clip(indices, 0, shape_of(value)[axis] - 1).astype(np.int64)
    return relax.op.take(value, relax.const(table), axis=axis)


def _text(node: OnnxNode, name: str, default: str) -> str:
    return text_of(node.attributes.get(name, default))


RESIZE: Mapping[str, Converter] = {"Resize": _resize}
"""by ONNX's names"""
