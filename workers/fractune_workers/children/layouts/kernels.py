"""Convolutions and matrix products over blocked layouts, as tensor expressions.

In each the innermost spatial loop is a block of output channels: one vector of weights times one broadcast number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, topi

CONV, DEPTHWISE, MATMUL = "conv2d_blocked", "depthwise_blocked", "matmul_blocked"
"""the names of the main computations, by which a search knows what it has before it"""


@dataclass(frozen=True)
class Window:
    """How a convolution moves over an image: pairs are (height, width), padding is (top, left, bottom, right)."""

    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]

    def padded(self, data: te.Tensor) -> te.Tensor:
        """`data` with zeros around its axes 2 and 3."""
        if not any(self.padding):
            return data
        top, left, bottom, right = self.padding
        inner = (0,) * (len(data.shape) - 4)
        return topi.nn.pad(data, (0, 0, top, left, *inner), (0, 0, bottom, right, *inner), name="pad_temp")

    def extents(self, height: int, width: int, kernel: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the output, of those of the padded image."""
        (sy, sx), (dy, dx) = self.strides, self.dilation
        return (height - (kernel[0] - 1) * dy - 1) // sy + 1, (width - (kernel[1] - 1) * dx - 1) // sx + 1

    def at(self, y: Any, x: Any, ry: Any, rx: Any) -> tuple[Any, Any]:
        """Where in the padded image the output's (y, x) reads for the kernel's (ry, rx)."""
        (sy, sx), (dy, dx) = self.strides, self.dilation
        return y * sy + ry * dy, x * sx + rx * dx


def conv2d_first(data: te.Tensor, weight: te.Tensor, window: Window) -> te.Tensor:
    """Of a plain image with few channels: (N, C, H, W) and (K/b, C, R, S, b) -> (N, K/b, Y, X, b)."""
    blocks, channels, *kernel, size = (int(dim) for dim in weight.shape)
    image = window.padded(data)
    batch, _, height, width = (int(dim) for dim in image.shape)
    ci, ry, rx = (te.reduce_axis((0, extent), name) for extent, name in zip((channels, *kernel), ("ci", "ry", "rx")))

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        return te.sum(image(n, ci, *window.at(y, x, ry, rx)) * weight(k, ci, ry, rx, lane), axis=[ci, ry, rx])

    shape = (batch, blocks, *window.extents(height, width, (kernel[0], kernel[1])), size)
    return te.compute(shape, element, name=CONV)


def conv2d(data: te.Tensor, weight: te.Tensor, window: Window, groups: int = 1) -> te.Tensor:
    """(N, C/b, H, W, b) and (K/b, C/groups/b, R, S, b, b), the last two input and output channels -> (N, K/b, Y, X, b).

    In each group both kinds of channels must be multiples of the block.
    """
    out_blocks, in_blocks, *kernel, in_size, out_size = (int(dim) for dim in weight.shape)
    image = window.padded(data)
    batch, _, height, width, _ = (int(dim) for dim in image.shape)
    extents = (in_blocks, *kernel, in_size)
    co, ry, rx, ci = (te.reduce_axis((0, extent), name) for extent, name in zip(extents, ("co", "ry", "rx", "ci")))

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        block = co if groups == 1 else k // (out_blocks // groups) * in_blocks + co
        pixel = image(n, block, *window.at(y, x, ry, rx), ci)
        return te.sum(pixel * weight(k, co, ry, rx, ci, lane), axis=[co, ry, rx, ci])

    shape = (batch, out_blocks, *window.extents(height, width, (kernel[0], kernel[1])), out_size)
    return te.compute(shape, element, name=CONV)


def depthwise_conv2d(data: te.Tensor, weight: te.Tensor, window: Window) -> te.Tensor:
    """Each channel by itself: (N, C/b, H, W, b) and (C/b, R, S, b) -> (N, C/b, Y, X, b)."""
    blocks, *kernel, size = (int(dim) for dim in weight.shape)
    image = window.padded(data)
    batch, _, height, width, _ = (int(dim) for dim in image.shape)
    ry, rx = (te.reduce_axis((0, extent), name) for extent, name in zip(kernel, ("ry", "rx")))

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        return te.sum(image(n, k, *window.at(y, x, ry, rx), lane) * weight(k, ry, rx, lane), axis=[ry, rx])

    shape = (batch, blocks, *window.extents(height, width, (kernel[0], kernel[1])), size)
    return te.compute(shape, element, name=DEPTHWISE)


def matmul(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """(..., M, K) and (N/b, K, b) -> (..., M, N/b, b), which lies in memory as (..., M, N)."""
    blocks, depth, size = (int(dim) for dim in weight.shape)
    k = te.reduce_axis((0, depth), "k")

    def element(*index: Any) -> Any:
        *rows, block, lane = index
        return te.sum(data(*rows, k) * weight(block, k, lane), axis=[k])

    return te.compute((*data.shape[:-1], blocks, size), element, name=MATMUL)
