"""Resize, as ONNX means it. TVM's operator takes the ratio of the sizes for the scale, rounds coordinates in float32,
and knows no antialias. Where it would differ from ONNX, pixels are taken by tables that are computed here in fractions.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, shape_of
from fractune_workers.children.rewriting.expressions import is_constant

_SCALES, _SIZES = 2, 3
_CROP = "tf_crop_and_resize"
_HALF = Fraction(1, 2)
_MOST_TAPS = 64
"""Pixels of one axis that a pixel of the result reads; each is an operator"""

_MOST_DENOMINATOR = 1000
"""of a scale that was written as a decimal or a fraction before it became float32"""

_Place = Callable[[int, int, int, Fraction], Fraction]
"""Of a pixel in the result, the sizes before and after, and the scale: the place in the input"""


def _half_pixel(at: int, _before: int, _after: int, scale: Fraction) -> Fraction:
    return (at + _HALF) / scale - _HALF


def _pytorch_half_pixel(at: int, before: int, after: int, scale: Fraction) -> Fraction:
    return _half_pixel(at, before, after, scale) if after > 1 else Fraction(0)


def _align_corners(at: int, before: int, _after: int, scale: Fraction) -> Fraction:
    length = scale * before  # not rounded, as in ONNX's reference
    return at * (before - 1) / (length - 1) if length != 1 else Fraction(0)


def _half_pixel_symmetric(at: int, before: int, after: int, scale: Fraction) -> Fraction:
    return Fraction(before, 2) * (1 - after / (scale * before)) + _half_pixel(at, before, after, scale)


def _asymmetric(at: int, _before: int, _after: int, scale: Fraction) -> Fraction:
    return at / scale


_PLACES: Mapping[str, _Place] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
}
_PLACES_OF_TVM = frozenset({"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"})
_POLICIES: Mapping[str, Callable[[Iterable[Fraction]], Fraction]] = {"not_larger": min, "not_smaller": max}
"""The scale of all axes that keeps their ratio"""
_ROUNDINGS: Mapping[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda place: math.ceil(place - _HALF),
    "round_prefer_ceil": lambda place: math.floor(place + _HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _resize(node: OnnxNode) -> Any:
    node = _without_empty(node)
    mode, place = _text(node, "mode", "nearest"), _text(node, "coordinate_transformation_mode", "half_pixel")
    antialias, inside = (bool(node.attributes.get(name, 0)) for name in ("antialias", "exclude_outside"))
    _check(node, mode, place)
    before = shape_of(node.input(0))
    scales, after = _scales(node, before)
    if place == _CROP:
        _check_crop(node, scales, is_alike=after[:2] == before[:2], antialias=antialias)
        return node.by_tvm()
    ratios = [Fraction(new, old) for new, old in zip(after, before, strict=True)]
    is_whole = all(1 in (ratio.numerator, ratio.denominator) for ratio in ratios)
    is_image = scales == ratios and after[:2] == before[:2] and "axes" not in node.attributes
    if place == "align_corners" and 1 in after[2:]:
        is_image = False  # TVM divides by the size less 1
    if is_image and (is_whole or mode != "nearest") and not antialias and not inside and place in _PLACES_OF_TVM:
        return node.by_tvm()
    value = node.input(0)
    for axis, (old, new, scale) in enumerate(zip(before, after, scales, strict=True)):
        if old != new:
            places = [_PLACES[place](at, old, new, scale) for at in range(new)]
            if mode == "nearest":
                value = node.emit(_nearest(node, value, axis, places))
            else:
                stretch = min(scale, Fraction(1)) if antialias else Fraction(1)
                value = node.emit(_weighted(node, value, axis, _kernel(node, mode, stretch), places))
    return value


def _without_empty(node: OnnxNode) -> OnnxNode:
    """The node without its empty inputs. Exporters leave out a region and scales so: before opset 13 both had to be
    there, and TVM's converter takes no scales beside sizes.
    """
    return node.with_inputs(value if value is None or _is_filled(value) else None for value in node.inputs)


def _is_filled(value: Any) -> bool:
    return not is_constant(value) or value.value.numpy().size > 0


def _check(node: OnnxNode, mode: str, place: str) -> None:
    """Raises BadModel for attributes and scales that are not supported."""
    if mode not in ("nearest", "linear", "cubic"):
        raise node.refused(f"mode='{mode}' is neither nearest, linear nor cubic; export the model again")
    if node.attributes.get("antialias", 0) and mode == "nearest":
        raise node.refused("antialias=1 with mode='nearest' is not valid ONNX; export it with mode='linear'")
    if place not in (_CROP, *_PLACES):
        raise node.refused(f"coordinate_transformation_mode='{place}' is not supported; use half_pixel or asymmetric")
    scales = node.constant(_SCALES)
    for axis, scale in enumerate(() if scales is None else scales):
        if not 0 < scale < math.inf:
            raise node.refused(f"its scale {axis} is {scale}; export it with scales that are finite and above 0")


def _check_crop(node: OnnxNode, scales: list[Fraction], *, is_alike: bool, antialias: bool) -> None:
    """`is_alike`: whether the batch and the channels keep their sizes."""
    if "axes" in node.attributes:
        raise node.refused("it crops some axes alone; export it without the attribute axes")
    if not is_alike:
        raise node.refused("it resizes the batch or the channels while it crops; export it with their sizes unchanged")
    if antialias and min(scales) < 1:
        raise node.refused(f"antialias=1 with '{_CROP}' is not supported; crop before, and resize with half_pixel")


def _scales(node: OnnxNode, before: list[int]) -> tuple[list[Fraction], list[int]]:
    """For each axis: the scale, and the size after it."""
    scales, sizes = node.constant(_SCALES), node.constant(_SIZES)
    by_scales = scales is not None and scales.size > 0
    given = scales if by_scales else sizes
    axes = [int(axis) % len(before) for axis in node.attributes.get("axes", range(len(before)))]
    if given is None or len(given) != len(axes):
        raise node.refused("its sizes are not constants for all its axes; export it with fixed sizes")
    factors, after = [Fraction(1)] * len(before), list(before)
    policy = _POLICIES.get(_text(node, "keep_aspect_ratio_policy", "stretch"))
    for axis, number in zip(axes, given, strict=True):
        factors[axis] = _scale(float(number)) if by_scales else Fraction(int(number), before[axis])
        after[axis] = math.floor(factors[axis] * before[axis]) if by_scales else int(number)
    if policy and not by_scales:
        common = policy(factors[axis] for axis in axes)
        for axis in axes:
            factors[axis], after[axis] = common, math.floor(common * before[axis] + _HALF)
    for axis in axes:
        near = Fraction(after[axis], before[axis])
        if factors[axis] <= 0 or after[axis] < 1:
            raise node.refused(f"it leaves no pixel of axis {axis}; export it with larger sizes")
        if abs(float(near - factors[axis])) <= 1e-6 * float(near):  # a scale is float32, as 0.333
            factors[axis] = near
    return factors, after


def _scale(number: float) -> Fraction:
    """The simple fraction that a scale in float32 stands for, as 7/10: a place between two pixels is then just between
    them.
    """
    simple = Fraction(number).limit_denominator(_MOST_DENOMINATOR)
    return simple if np.float32(simple) == np.float32(number) else Fraction(number)


def _nearest(node: OnnxNode, value: relax.Expr, axis: int, places: list[Fraction]) -> relax.Expr:
    rounded = _ROUNDINGS.get(_text(node, "nearest_mode", "round_prefer_floor"))
    if rounded is None:
        raise node.refused(f"nearest_mode is not one of {', '.join(_ROUNDINGS)}; export it again")
    return _taken(value, axis, [rounded(place) for place in places])


@dataclass(frozen=True)
class _Kernel:
    """The weight of a pixel by its distance from the place."""

    weight: Callable[[float], float]
    reach: Fraction
    """the distance from which on the weight is 0"""
    stretch: Fraction
    """of a reduction with antialias: distances count for less, so that each pixel of the input counts"""
    inside: bool
    """whether pixels outside the input count for nothing, in place of those at the edge"""


def _kernel(node: OnnxNode, mode: str, stretch: Fraction) -> _Kernel:
    inside = bool(node.attributes.get("exclude_outside", 0))
    if mode == "linear":
        return _Kernel(lambda distance: max(0.0, 1 - distance), 1 / stretch, stretch, inside)
    slope = float(node.attributes.get("cubic_coeff_a", -0.75))
    return _Kernel(lambda distance: _keys(distance, slope), 2 / stretch, stretch, inside)


def _keys(x: float, a: float) -> float:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981)."""
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _weighted(node: OnnxNode, value: relax.Expr, axis: int, kernel: _Kernel, places: list[Fraction]) -> relax.Expr:
    """Of each place the sum of the pixels around it, by their weights; beside the edge, the edge."""
    rank, length = len(shape_of(value)), shape_of(value)[axis]
    taps = 2 * math.ceil(kernel.reach)
    if taps > _MOST_TAPS:
        raise node.refused(f"it reads {taps} pixels for one, and {_MOST_TAPS} is the limit; resize in several steps")
    first = [math.floor(place) - taps // 2 + 1 for place in places]
    weights = np.array(
        [
            [kernel.weight(abs(float((start + tap - place) * kernel.stretch))) for tap in range(taps)]
            for start, place in zip(first, places, strict=True)
        ]
    )
    if kernel.inside:
        pixels = np.add.outer(first, range(taps))
        weights = np.where((pixels >= 0) & (pixels < length), weights, 0)
    sums = weights.sum(axis=1, keepdims=True)
    weights = weights / np.where(sums == 0, 1, sums)
    shape = [-1 if each == axis else 1 for each in range(rank)]
    total = None
    for tap in range(taps):
        pixels = node.emit(_taken(value, axis, [start + tap for start in first]))
        part = node.emit(relax.op.multiply(pixels, relax.const(weights[:, tap].reshape(shape).astype(dtype_of(value)))))
        total = part if total is None else node.emit(relax.op.add(total, part))
    return total


def _taken(value: relax.Expr, axis: int, indices: list[int]) -> relax.Expr:
    """The pixels of these indices; outside, those at the edge."""
    table = np.clip(indices, 0, shape_of(value)[axis] - 1).astype(np.int64)
    return relax.op.take(value, relax.const(table), axis=axis)


def _text(node: OnnxNode, name: str, default: str) -> str:
    return text_of(node.attributes.get(name, default))


RESIZE: Mapping[str, Converter] = {"Resize": _resize}
"""by ONNX's names"""
