"""Operators with windows and coordinates: pools, convolutions, resizes, regions."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.support.forms.form import FLOATS, Form, extreme, form, full, i64, random, versions


def pools() -> Iterator[Form]:
    pads: list[dict[str, Any]] = [{"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}, {}]
    sizes = [((1, 2, 7), (3,), (2,)), ((1, 2, 7, 8), (2, 3), (2, 1)), ((1, 2, 5, 6, 7), (2, 2, 3), (1, 2, 2))]
    for operator, attributes, (shape, kernel, strides) in itertools.product(
        ("MaxPool", "AveragePool", "LpPool"), pads, sizes
    ):
        for opset in versions(operator):
            yield form(operator, opset, random("float32", *shape), kernel_shape=kernel, strides=strides, **attributes)
    for operator, ceil, pad in itertools.product(
        ("MaxPool", "AveragePool", "LpPool"), (0, 1), ([0, 0, 0, 0], [1, 0, 1, 2])
    ):
        given: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 3), "pads": pad, "ceil_mode": ceil}
        include = (0, 1) if operator == "AveragePool" else (None,)
        for count, dilation in itertools.product(include, ((1, 1), (2, 1))):
            opset = 22 if operator == "MaxPool" else 19 if operator == "AveragePool" else 18
            yield form(
                operator, opset, random("float32", 1, 2, 9, 8), count_include_pad=count, dilations=dilation, **given
            )


def pools_of_types() -> Iterator[Form]:
    for dtype in ("float16", "float64", "int8", "uint8"):
        for value in (random(dtype, 1, 2, 6, 6), extreme(dtype, 1, 2, 6, 6)):
            yield form("MaxPool", 12, value, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    lowest = form("MaxPool", 12, full(-np.inf, "float32", 1, 2, 6, 6), kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    yield replace(lowest, by_onnx=True)  # ONNX Runtime gives the lowest finite number in the outer columns alone
    for order in (0, 1):
        yield form("MaxPool", 12, random("float32", 1, 2, 6, 5), kernel_shape=(2, 2), outputs=2, storage_order=order)
    for power, dtype in itertools.product((1, 2, 3), ("float32", "float64")):
        yield form("LpPool", 18, random(dtype, 1, 2, 6, 6), kernel_shape=(2, 2), p=power)
        yield form("GlobalLpPool", 2 if power == 2 else 7, random(dtype, 1, 2, 6, 6), p=power)
    for operator, dtype in itertools.product(("GlobalAveragePool", "GlobalMaxPool"), FLOATS):
        # ONNX Runtime has no kernel for the largest of float64, and ONNX's evaluator is right for two axes alone.
        sizes = [(100, 60)] if (operator, dtype) == ("GlobalMaxPool", "float64") else [(9,), (100, 60), (3, 4, 5)]
        yield from (form(operator, 7, random(dtype, 1, 2, *size)) for size in sizes)
        yield form(operator, 7, full(100, dtype, 1, 2, 64, 64))
    for dtype in ("float16", "float64"):
        yield form("AveragePool", 11, full(100, dtype, 1, 2, 32, 32), kernel_shape=(32, 32))


def convolutions() -> Iterator[Form]:
    pads: list[dict[str, Any]] = [{"auto_pad": mode} for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")]
    sizes = [((1, 4, 9), (3,)), ((1, 4, 8, 7), (3, 2)), ((1, 4, 5, 6, 5), (2, 3, 2))]
    for (shape, kernel), mode, stride, groups in itertools.product(sizes, [*pads, {}], (1, 2), (1, 2, 4)):
        strides = (stride,) * len(kernel)
        bias = random("float32", 8, seed=2)
        weight = random("float32", 8, 4 // groups, *kernel, seed=1, low=-1, high=1)
        yield form("Conv", 11, random("float32", *shape), weight, bias, fixed=2, strides=strides, group=groups, **mode)
        back = random("float32", 4, 8 // groups, *kernel, seed=1, low=-1, high=1)
        given = random("float32", *shape)
        yield form("ConvTranspose", 11, given, back, bias, fixed=2, strides=strides, group=groups, **mode)
    for operator, dtype in itertools.product(("Conv", "ConvTranspose"), FLOATS):
        image, weight = random(dtype, 1, 4, 8, 8), random(dtype, 4, 4, 3, 3, seed=1)
        yield form(operator, 11, image, weight, fixed=1, pads=(1, 0, 2, 1), dilations=(2, 1))
        yield form(operator, 11, image, weight)
        yield (
            form(operator, 11, full(1, dtype, 1, 600, 3, 3), full(1, dtype, 600, 2, 3, 3), fixed=1)
            if (operator == "ConvTranspose")
            else form(operator, 11, full(1, dtype, 1, 600, 3, 3), full(1, dtype, 2, 600, 3, 3), fixed=1)
        )
    image, weight = random("float32", 1, 4, 6, 6), random("float32", 4, 3, 3, 3, seed=1)
    for extra in (
        {"output_padding": (1, 1)},
        {"output_shape": (13, 12)},
        {"output_shape": (12, 12), "auto_pad": "SAME_LOWER"},
    ):
        yield form("ConvTranspose", 11, image, weight, fixed=1, strides=(2, 2), **extra)
        yield form("ConvTranspose", 11, image, weight, fixed=1, strides=(2, 2), dilations=(2, 2), **extra)


def resizes() -> Iterator[Form]:
    image = random("float32", 1, 2, 5, 6)
    scales = [(1, 1, 2, 2), (1, 1, 1.5, 2.5), (1, 1, 0.5, 0.7), (1, 1, 0.9, 1.0), (1, 1, 3, 1)]
    for scale, mode in itertools.product(scales, ("nearest", "linear")):
        if min(scale) >= 1:
            yield form("Upsample", 9, image, np.array(scale, "float32"), fixed=1, mode=mode)
            yield form("Upsample", 7, image, scales=scale, mode=mode)
        yield form("Resize", 10, image, np.array(scale, "float32"), fixed=1, mode=mode)
    coordinates = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
    for scale, mode, coordinate in itertools.product(scales, ("nearest", "linear", "cubic"), coordinates):
        opset = 19 if coordinate == "half_pixel_symmetric" else 13
        numbers = np.array(scale, "float32")
        rounding = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") if mode == "nearest" else (None,)
        for each in rounding:
            given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinate, "nearest_mode": each}
            # ONNX Runtime rounds the length that ONNX's own tests and evaluator leave as it is.
            by_onnx = coordinate == "align_corners" and any((np.multiply(image.shape, scale) % 1).tolist())
            yield replace(form("Resize", opset, image, None, numbers, fixed=2, **given), by_onnx=by_onnx)
    for size, mode in itertools.product(((1, 2, 9, 4), (1, 2, 5, 13)), ("nearest", "linear", "cubic")):
        yield form("Resize", 13, image, None, None, i64(*size), fixed=3, mode=mode)
        nothing = np.zeros(0, "float32")
        yield form("Resize", 11, image, nothing, nothing, i64(*size), fixed=3, mode=mode)
        yield form("Resize", 18, image, None, None, i64(*size[2:]), fixed=3, mode=mode, axes=(2, 3), antialias=0)
        yield form(
            "Resize",
            18,
            image,
            None,
            None,
            i64(7, 7),
            fixed=3,
            mode=mode,
            axes=(2, 3),
            keep_aspect_ratio_policy="not_larger",
        )
    for exclude, coefficient in itertools.product((0, 1), (-0.5, -0.75)):
        yield form(
            "Resize",
            13,
            image,
            None,
            np.array(scales[1], "float32"),
            fixed=2,
            mode="cubic",
            exclude_outside=exclude,
            cubic_coeff_a=coefficient,
        )


def regions() -> Iterator[Form]:
    image = random("float32", 1, 2, 5, 6)
    grid = random("float32", 1, 4, 4, 2, seed=4, low=-1.3, high=1.3)
    for mode, padding, align in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        yield form("GridSample", 20, image, grid, mode=mode, padding_mode=padding, align_corners=align)
        old = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
        yield form("GridSample", 16, image, grid, mode=old, padding_mode=padding, align_corners=align)
    boxes = np.array([[0, 0, 9, 9], [2, 1, 14, 8], [5, 5, 5.5, 5.5], [-2, -1, 4, 20]], "float32")
    larger = random("float32", 2, 3, 10, 12)
    for opset, coordinate in ((10, None), (16, None), (16, "half_pixel"), (16, "output_half_pixel"), (22, None)):
        for mode, ratio, scale in itertools.product(("avg", "max"), (0, 2), (1.0, 0.5, 0.25)):
            yield form(
                "RoiAlign",
                opset,
                larger,
                boxes,
                i64(0, 1, 1, 0),
                output_height=3,
                output_width=2,
                mode=mode,
                sampling_ratio=ratio,
                spatial_scale=scale,
                coordinate_transformation_mode=coordinate,
            )
    whole = np.array([[0, 0, 0, 5, 5], [1, 2, 1, 9, 8]], "float32")
    yield from (form("MaxRoiPool", 7, larger, whole, pooled_shape=(3, 2), spatial_scale=s) for s in (1.0, 0.5))
