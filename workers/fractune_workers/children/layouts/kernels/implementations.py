"""Implementations of a blocked convolution beside the direct one: each is one kernel of the same image and output, with
weights in its own layout.

The fastest one depends on channels, extents and the share. Measurements decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy.typing as npt
from tvm import te

from fractune_core import operators as names
from fractune_workers.children.layouts.kernels.direct import Window
from fractune_workers.children.layouts.kernels.winograd import WINOGRAD2, WINOGRAD4, Winograd

_Array = npt.NDArray[Any]
_WEIGHT_DIMS, _KERNEL = 6, 3
_TRANSFORM, _READ_WEIGHT = 8.0, 12.0
"""Multiplications that take as long as transforming one element of a tile, and as reading one weight from beyond the
second cache. Fitted to both algorithms of Winograd at nine convolutions, on a processor with AVX-512."""


@dataclass(frozen=True)
class Implementation:
    """An implementation of a convolution with one group over blocks. Its functions take the convolution's window, the
    shape of the direct one's weights (K/b, C/b, R, S, b, b), and the image's height and width.
    """

    fits: Callable[[Window, tuple[int, ...], tuple[int, int]], bool]
    pack: Callable[[_Array], _Array]
    """its own weights, made of the direct one's"""
    compute: Callable[[te.Tensor, te.Tensor, Window], te.Tensor]
    """the output, of an image (N, C/b, H, W, b) and its own weights: as `direct.conv2d`"""
    cost: Callable[[Window, tuple[int, ...], tuple[int, int]], float]
    """an estimate of the time, as the number of multiplications that take as long"""


def may_have_others(shapes: Sequence[tuple[Any, ...]]) -> bool:
    """Whether an operator with arguments of these shapes may have one of IMPLEMENTATIONS: weights of 3 x 3 over blocks.
    In a fused model all shapes have slots before their axes. To prepare a model for each implementation takes as long
    as to prepare it once.
    """
    return any(len(shape) >= _WEIGHT_DIMS and shape[-4:-2] == (_KERNEL, _KERNEL) for shape in shapes)


def order(window: Window, weights: tuple[int, ...], image: tuple[int, int]) -> list[str]:
    """The names of the implementations that fit; the first is most likely the fastest on one core."""
    costs = {names.DIRECT: _direct_cost(window, weights, image)}
    for name, each in IMPLEMENTATIONS.items():
        if each.fits(window, weights, image):
            costs[name] = each.cost(window, weights, image)
    return sorted(costs, key=costs.__getitem__)


def order_of(shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """As `order`, from the shapes of the direct operator's arguments, the output last. Another implementation must fit
    the convolution, so it has no strides and no dilation. In a fused model all shapes have slots before their axes.
    """
    slots = max(map(len, shapes)) - _WEIGHT_DIMS
    image, weights, output = (each[slots:] for each in (shapes[0], max(shapes, key=len), shapes[-1]))
    bottom, right = (
        made + kernel - 1 - given for made, kernel, given in zip(output[2:4], weights[2:4], image[2:4], strict=True)
    )
    return order(Window((1, 1), (0, 0, bottom, right), (1, 1)), weights, (image[2], image[3]))


def _extents(window: Window, weights: tuple[int, ...], image: tuple[int, int]) -> tuple[int, int]:
    """Of the output."""
    top, left, bottom, right = window.padding
    return window.extents(image[0] + top + bottom, image[1] + left + right, (weights[2], weights[3]))


def _channels(weights: tuple[int, ...]) -> tuple[int, int]:
    """Of image and output, those that fill up a block among them."""
    return weights[1] * weights[4], weights[0] * weights[5]


def _direct_cost(window: Window, weights: tuple[int, ...], image: tuple[int, int]) -> float:
    inner, outer = _channels(weights)
    return weights[2] * weights[3] * inner * outer * (prod(_extents(window, weights, image)) + _READ_WEIGHT)


def _winograd_cost(winograd: Winograd, window: Window, weights: tuple[int, ...], image: tuple[int, int]) -> float:
    inner, outer = _channels(weights)
    tiles = winograd.tiles(_extents(window, weights, image))
    pairs = inner * outer * (tiles + _READ_WEIGHT)
    return winograd.taps**2 * (pairs + _TRANSFORM * tiles * (inner + outer))


def _of_winograd(winograd: Winograd) -> Implementation:
    return Implementation(winograd.fits, winograd.pack, winograd.compute, partial(_winograd_cost, winograd))


IMPLEMENTATIONS = {names.WINOGRAD2: _of_winograd(WINOGRAD2), names.WINOGRAD4: _of_winograd(WINOGRAD4)}
"""by name; the direct one, which everything fits, is not among them"""
