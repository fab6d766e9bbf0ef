"""Implementations of a blocked convolution beside the direct one: each is one kernel of the same image and output, with
weights in its own layout. The fastest one depends on channels, extents and the share. Measurements decide.

Winograd's convolutions F(m x m, 3 x 3) have fewer multiplications and more additions. For each pair of channels, an
output tile of m x m pixels takes (m + 2)^2 multiplications. The direct way takes 9 m^2. With m = 2 this is 16 and 36,
with m = 4 it is 36 and 144. Before and after the multiplications come sums over a tile: of the image, of the products,
and, computed once, of the weights. Method: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR
2016; F(4 x 4) with the points 0, 1, -1, 2, -2. The multiplications are (m + 2)^2 matrix products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy.typing as npt
import tvm
from tvm import te, topi

from fractune_core import operators as names
from fractune_core.tir.canonical import GEMM, IMAGE, IMAGE_COLUMNS, OUTPUT, OUTPUT_COLUMNS, PADDED
from fractune_workers.children.layouts.kernels.direct import Window
from fractune_workers.children.layouts.kernels.packing import pack_winograd

_Array = npt.NDArray[Any]
_Sums = Callable[[Sequence[Any]], list[Any]]

_KERNEL = 3


@dataclass(frozen=True)
class Winograd:
    """F(m x m, 3 x 3)."""

    name: str
    """of the implementation"""
    outputs: int
    """m: rows and columns of an output tile"""
    of_image: _Sums
    """B^T of a column: m + 2 values become m + 2 values"""
    of_products: _Sums
    """A^T of a column: m + 2 values become m"""

    @property
    def taps(self) -> int:
        """Rows and columns of an image tile, which overlaps with the next by two."""
        return self.outputs + _KERNEL - 1

    def fits(self, window: Window, weights: tuple[int, ...], image: tuple[int, int]) -> bool:
        """Of packed weights' shape (K/b, C/b, R, S, b, b) and an image's height and width."""
        del image
        return weights[2:4] == (_KERNEL, _KERNEL) and window.strides == window.dilation == (1, 1)

    def tiles(self, extents: tuple[int, int]) -> int:
        """The number of tiles that cover an output of these extents."""
        rows, columns = (-(-extent // self.outputs) for extent in extents)
        return rows * columns

    def pack(self, weights: _Array) -> _Array:
        """Its weights of the direct kernel's (`packing.pack_winograd`)."""
        return pack_winograd(self.name, weights)

    def compute(self, data: te.Tensor, weight: te.Tensor, window: Window) -> te.Tensor:
        """(N, C/b, H, W, b), and weights of `pack` -> (N, K/b, Y, X, b)."""
        height, width = (int(dim) for dim in data.shape[2:4])
        top, left, bottom, right = window.padding
        extents = (height + top + bottom - _KERNEL + 1, width + left + right - _KERNEL + 1)
        tiles = self._image_tiles(self._padded(data, (top, left), extents))
        return self._outputs(_products(tiles, weight), extents)

    def _padded(self, data: te.Tensor, before: tuple[int, int], extents: tuple[int, int]) -> te.Tensor:
        """The image with zeros before and behind it, so that whole tiles cover the output's `extents`."""
        whole = (-(-extent // self.outputs) * self.outputs + _KERNEL - 1 for extent in extents)
        inside = (int(dim) for dim in data.shape[2:4])
        behind = (to - first - dim for to, first, dim in zip(whole, before, inside, strict=True))
        return topi.nn.pad(data, (0, 0, *before, 0), (0, 0, *behind, 0), name=PADDED)

    def _image_tiles(self, image: te.Tensor) -> te.Tensor:
        """(N, C/b, H, W, b) -> (taps, taps, N, C/b, rows of tiles, columns of tiles, b). The sums over columns come
        first: tiles share them. The sums over rows follow.
        """
        size, taps = self.outputs, range(self.taps)
        batch, blocks, height, width, lanes = (int(dim) for dim in image.shape)
        rows, columns = (height - _KERNEL + 1) // size, (width - _KERNEL + 1) // size

        def over_column(v: Any, n: Any, c: Any, ty: Any, x: Any, lane: Any) -> Any:
            return _pick(v, self.of_image([image(n, c, ty * size + tap, x, lane) for tap in taps]))

        shape = (self.taps, batch, blocks, rows, width, lanes)
        columned = te.compute(shape, over_column, name=IMAGE_COLUMNS)

        def over_row(v: Any, u: Any, n: Any, c: Any, ty: Any, tx: Any, lane: Any) -> Any:
            return _pick(u, self.of_image([columned(v, n, c, ty, tx * size + tap, lane) for tap in taps]))

        return te.compute((self.taps, *shape[:4], columns, lanes), over_row, name=IMAGE)

    def _outputs(self, products: te.Tensor, extents: tuple[int, int]) -> te.Tensor:
        """(taps, taps, N, K/b, rows of tiles, columns of tiles, b) -> (N, K/b, Y, X, b) with `extents` (Y, X)."""
        size, taps = self.outputs, range(self.taps)
        _, _, batch, blocks, rows, columns, lanes = (int(dim) for dim in products.shape)

        def over_column(u: Any, n: Any, k: Any, y: Any, tx: Any, lane: Any) -> Any:
            return _pick(y % size, self.of_products([products(v, u, n, k, y // size, tx, lane) for v in taps]))

        # Whole tiles, so that all loops over tiles have the same extent, at the edge too.
        shape = (self.taps, batch, blocks, rows * size, columns, lanes)
        columned = te.compute(shape, over_column, name=OUTPUT_COLUMNS)

        def over_row(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
            return _pick(x % size, self.of_products([columned(u, n, k, y, x // size, lane) for u in taps]))

        return te.compute((batch, blocks, *extents, lanes), over_row, name=OUTPUT)


def _products(tiles: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """Of each tap a matrix product over channels: -> (taps, taps, N, K/b, rows, columns, b)."""
    taps, _, out_blocks, in_blocks, in_size, out_size = (int(dim) for dim in weight.shape)
    batch, rows, columns = (int(tiles.shape[axis]) for axis in (2, 4, 5))
    co, ci = te.reduce_axis((0, in_blocks), "co"), te.reduce_axis((0, in_size), "ci")

    def product(v: Any, u: Any, n: Any, k: Any, ty: Any, tx: Any, lane: Any) -> Any:
        return te.sum(tiles(v, u, n, co, ty, tx, ci) * weight(v, u, k, co, ci, lane), axis=[co, ci])

    return te.compute((taps, taps, batch, out_blocks, rows, columns, out_size), product, name=GEMM)


def _pick(index: Any, values: list[Any]) -> Any:
    """The value at `index`, one of the few that a loop unrolls."""
    chosen = values[-1]
    for at in range(len(values) - 2, -1, -1):
        chosen = tvm.tirx.Select(index == at, values[at], chosen)
    return chosen


def _image_by_2(d: Sequence[Any]) -> list[Any]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _products_by_2(p: Sequence[Any]) -> list[Any]:
    return [p[0] + p[1] + p[2], p[1] - p[2] - p[3]]


def _image_by_4(d: Sequence[Any]) -> list[Any]:
    even, odd = d[4] - 4.0 * d[2], d[3] - 4.0 * d[1]
    even2, odd2 = d[4] - d[2], 2.0 * (d[3] - d[1])
    return [
        4.0 * d[0] - 5.0 * d[2] + d[4],
        even + odd,
        even - odd,
        even2 + odd2,
        even2 - odd2,
        4.0 * d[1] - 5.0 * d[3] + d[5],
    ]


def _products_by_4(p: Sequence[Any]) -> list[Any]:
    even, odd, even2, odd2 = p[1] + p[2], p[1] - p[2], p[3] + p[4], p[3] - p[4]
    return [p[0] + even + even2, odd + 2.0 * odd2, even + 4.0 * even2, odd + 8.0 * odd2 + p[5]]


WINOGRAD2 = Winograd(names.WINOGRAD2, 2, _image_by_2, _products_by_2)
WINOGRAD4 = Winograd(names.WINOGRAD4, 4, _image_by_4, _products_by_4)


_WEIGHT_DIMS = 6
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
