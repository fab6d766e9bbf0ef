"""Winograd's convolutions F(m x m, 3 x 3) over blocked layouts: fewer multiplications, more additions.

An output tile of m x m pixels takes (m + 2)^2 multiplications for each pair of channels, where the direct way takes
9 m^2: 16 and 36 for 4 x 4, 36 and 144. What comes before and after them are sums over a tile: of the image, of the
products, and once and for all of the weights (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR
2016; F(4 x 4) with the points 0, 1, -1, 2, -2). In between are (m + 2)^2 matrix products of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import te, topi

from fractune_workers.children.layouts.kernels import WINOGRAD, Window

_Array = npt.NDArray[Any]
_Sums = Callable[[Sequence[Any]], list[Any]]

_KERNEL = 3
_LONGEST_TILE, _SHORTEST_TILE = 28, 4
"""tiles of the image in a row of accumulators"""


@dataclass(frozen=True)
class Winograd:
    """F(m x m, 3 x 3)."""

    outputs: int
    """m: rows and columns of an output tile"""
    of_weights: _Array
    """G, of shape (m + 2, 3): weights w become G w G^T"""
    of_image: _Sums
    """B^T of a column: m + 2 values become as many"""
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

    def pack(self, weights: _Array) -> _Array:
        """(K/b, C/b, 3, 3, b, b) -> (m + 2, m + 2, K/b, C/b, b, b), computed in float64."""
        exact = weights.astype(np.float64)
        return np.einsum("yr,xs,kcrsil->yxkcil", self.of_weights, self.of_weights, exact).astype(weights.dtype)

    def compute(self, data: te.Tensor, weight: te.Tensor, window: Window) -> te.Tensor:
        """(N, C/b, H, W, b), and weights of `pack` -> (N, K/b, Y, X, b)."""
        taps, size = self.taps, self.outputs
        _, _, out_blocks, in_blocks, in_size, out_size = (int(dim) for dim in weight.shape)
        batch, _, height, width, _ = (int(dim) for dim in data.shape)
        top, left, bottom, right = window.padding
        extents = (height + top + bottom - 2, width + left + right - 2)
        rows, columns = (tiles(extent, size) for extent in extents)
        # Beyond the image's own padding there are zeros to fill up the last tiles.
        bottom, right = rows * size + 2 - height - top, columns * size + 2 - width - left
        image = topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0), name="pad_temp")

        def image_row(v: Any, n: Any, c: Any, ty: Any, x: Any, lane: Any) -> Any:
            return _pick(v, self.of_image([image(n, c, ty * size + tap, x, lane) for tap in range(taps)]))

        shape = (taps, batch, in_blocks, rows, columns * size + 2, in_size)
        image_rows = te.compute(shape, image_row, name="winograd_image_rows")

        def image_tile(v: Any, u: Any, n: Any, c: Any, ty: Any, tx: Any, lane: Any) -> Any:
            return _pick(u, self.of_image([image_rows(v, n, c, ty, tx * size + tap, lane) for tap in range(taps)]))

        shape = (taps, taps, batch, in_blocks, rows, columns, in_size)
        image_tiles = te.compute(shape, image_tile, name="winograd_image")
        co, ci = te.reduce_axis((0, in_blocks), "co"), te.reduce_axis((0, in_size), "ci")

        def product(v: Any, u: Any, n: Any, k: Any, ty: Any, tx: Any, lane: Any) -> Any:
            return te.sum(image_tiles(v, u, n, co, ty, tx, ci) * weight(v, u, k, co, ci, lane), axis=[co, ci])

        shape = (taps, taps, batch, out_blocks, rows, columns, out_size)
        products = te.compute(shape, product, name=WINOGRAD)

        def output_row(u: Any, n: Any, k: Any, y: Any, tx: Any, lane: Any) -> Any:
            column = [products(v, u, n, k, y // size, tx, lane) for v in range(taps)]
            return _pick(y % size, self.of_products(column))

        shape = (taps, batch, out_blocks, rows * size, columns, out_size)
        output_rows = te.compute(shape, output_row, name="winograd_output_rows")

        def output(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
            row = [output_rows(u, n, k, y, x // size, lane) for u in range(taps)]
            return _pick(x % size, self.of_products(row))

        return te.compute((batch, out_blocks, *extents, out_size), output, name="winograd_output")


def tiles(extent: int, size: int) -> int:
    """How many tiles of `size` pixels cover `extent`: more than needed where that has no good divisor."""
    count = -(-extent // size)
    while count > _LONGEST_TILE and not any(count % part == 0 for part in range(_SHORTEST_TILE, _LONGEST_TILE + 1)):
        count += 1
    return count


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


WINOGRAD2 = Winograd(2, np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]) / 2, _image_by_2, _products_by_2)
WINOGRAD4 = Winograd(
    4,
    np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24,
    _image_by_4,
    _products_by_4,
)
