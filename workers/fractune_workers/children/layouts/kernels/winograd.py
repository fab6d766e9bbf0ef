"""Winograd's convolutions F(m x m, 3 x 3) over blocked layouts: fewer multiplications, more additions.

For each pair of channels, an output tile of m x m pixels takes (m + 2)^2 multiplications. The direct way takes 9 m^2.
With m = 2 this is 16 and 36, with m = 4 it is 36 and 144.

Before and after the multiplications come sums over a tile: of the image, of the products, and, computed once, of the
weights. Method: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016; F(4 x 4) with the points
0, 1, -1, 2, -2. The multiplications are (m + 2)^2 matrix products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
