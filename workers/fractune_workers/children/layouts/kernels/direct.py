"""Blocked layouts, and convolutions and matrix products over them as tensor expressions.

One axis of a tensor, its channels, lies in blocks of the processor's vector width. In blocks of 16 along its axis 1, a
tensor of shape (N, C, H, W) lies as (N, ceil(C / 16), H, W, 16). The innermost loop is always one vector, whatever the
image's size: a block of output channels, one vector of weights times one broadcast number. Where C is not a multiple of
the block, the last block is filled up.

Channels of groups may lie in parts with blocks of their own, so that no block has channels of two groups. For example,
136 channels in 4 parts are 4 times 34, and lie in 4 times 3 blocks of 16.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_core.names import FROM_BLOCKS, TO_BLOCKS
from fractune_core.tir.canonical import CONV, DEPTHWISE, MATMUL, WHOLE_NUMBERS
from fractune_workers.children.rewriting.accumulators import HALVES
from fractune_workers.children.rewriting.expressions import OPAQUE

_LARGEST_SUM = 2**31 - 1


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest whole number of a kernel's data, and of its weights."""

    data: tuple[int, int]
    weights: tuple[int, int]
    computed: bool = False
    """whether the weights are computed when the model runs"""

    def numbers(self) -> list[int]:
        """As an annotation has them (`kernel_names.WHOLE_NUMBERS`)."""
        return [*self.data, *self.weights, *([1] if self.computed else [])]

    def sums_fit(self, depth: int) -> bool:
        """Whether sums of `depth` products fit into int32."""
        largest = max(map(abs, self.data)) * max(map(abs, self.weights))
        return depth * largest < _LARGEST_SUM


_MANY = 16
"""blocks; from this number on, one more block costs next to nothing to compute"""


@dataclass(frozen=True)
class Blocks:
    """The layout of a plain tensor in blocks: a tensor of `shape`, with `axis` in blocks of `size`."""

    shape: tuple[int, ...]
    axis: int
    size: int
    dropped: tuple[int, ...] = ()
    """axes of extent 1 that the plain tensor lacks: a squeeze or a reduction does not change the rank in blocks"""
    parts: int = 1
    """the number of equal parts of the axis; each part has blocks of its own"""

    @property
    def plain(self) -> tuple[int, ...]:
        """The plain tensor's shape."""
        return tuple(self.shape[axis] for axis in self.kept)

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that the plain tensor has."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.dropped)

    @property
    def count(self) -> int:
        return self.parts * block_count(self._part, self.size)

    @property
    def filled_up(self) -> bool:
        """Whether there are lanes that stand for no channel."""
        return self.shape[self.axis] < self.count * self.size

    @property
    def is_view(self) -> bool:
        """Whether the plain tensor lies in memory in the same order."""
        return self.axis == len(self.shape) - 1 and not self.filled_up

    @property
    def physical(self) -> tuple[int, ...]:
        """The shape in memory."""
        return (*self.shape[: self.axis], self.count, *self.shape[self.axis + 1 :], self.size)

    def channel(self, block: Any, lane: Any) -> tuple[Any, Any]:
        """The channel that a lane stands for, and whether this channel exists."""
        blocks = self.count // self.parts
        within = block % blocks * self.size + lane
        return block // blocks * self._part + within, within < self._part

    def place(self, channel: Any) -> tuple[Any, Any]:
        """The block and the lane of a channel."""
        if self.parts == 1:
            return channel // self.size, channel % self.size
        part, within = channel // self._part, channel % self._part
        return part * (self.count // self.parts) + within // self.size, within % self.size

    @property
    def _part(self) -> int:
        return self.shape[self.axis] // self.parts


def block_count(channels: int, size: int) -> int:
    """The number of blocks that hold the channels.

    Where the last of many blocks has to be filled up anyway, the number is even: a tile of two blocks is fast.
    """
    whole, rest = divmod(channels, size)
    count = whole + (rest > 0)
    return count + count % 2 if rest and count >= _MANY else count


def pack(array: npt.NDArray[Any], axis: int, size: int, fill: float = 0.0, parts: int = 1) -> npt.NDArray[Any]:
    """The array with its axis in blocks, in `parts` parts, with `fill` in the lanes that stand for no channel."""
    before, part, after = array.shape[:axis], array.shape[axis] // parts, array.shape[axis + 1 :]
    count = block_count(part, size)
    missing = [(0, 0)] * (array.ndim + 1)
    missing[axis + 1] = (0, count * size - part)
    whole = np.pad(array.reshape(*before, parts, part, *after), missing, constant_values=fill)
    split = whole.reshape(*before, parts * count, size, *after)
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def to_blocks(data: te.Tensor, blocks: Blocks) -> te.Tensor:
    """The plain tensor in blocks; 0 in the lanes that stand for no channel."""

    def element(*index: Any) -> Any:
        channel, exists = blocks.channel(index[blocks.axis], index[-1])
        plain = data(*(channel if axis == blocks.axis else index[axis] for axis in blocks.kept))
        if not blocks.filled_up:
            return plain
        return tvm.tirx.if_then_else(exists, plain, tvm.tirx.const(0, data.dtype))

    return te.compute(blocks.physical, element, name=TO_BLOCKS)


def from_blocks(data: te.Tensor, blocks: Blocks) -> te.Tensor:
    """The tensor in blocks as a plain one."""

    def element(*index: Any) -> Any:
        whole = dict.fromkeys(blocks.dropped, 0) | dict(zip(blocks.kept, index, strict=True))
        whole[blocks.axis], lane = blocks.place(whole[blocks.axis])
        return data(*(whole[axis] for axis in range(len(blocks.shape))), lane)

    return te.compute(blocks.plain, element, name=FROM_BLOCKS)


_Array = npt.NDArray[Any]
_MATRIX_RANK = 2


@dataclass(frozen=True)
class Window:
    """The movement of a convolution over an image: pairs are (height, width), padding is (top, left, bottom, right)."""

    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(cls, attrs: Any) -> Window:
        """The window of a call's attributes."""
        padding = [int(side) for side in attrs.padding]
        top, left, bottom, right = padding * (4 // len(padding))
        sy, sx = (int(step) for step in attrs.strides)
        dy, dx = (int(step) for step in attrs.dilation)
        return cls((sy, sx), (top, left, bottom, right), (dy, dx))

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
        """The place in the padded image that the output's (y, x) reads for the kernel's (ry, rx)."""
        (sy, sx), (dy, dx) = self.strides, self.dilation
        return y * sy + ry * dy, x * sx + rx * dx


def conv2d_first(data: te.Tensor, weight: te.Tensor, window: Window) -> te.Tensor:
    """Of a plain image with few channels: (N, C, H, W) and (K/b, C, R, S, b) -> (N, K/b, Y, X, b)."""
    blocks, channels, *kernel, size = (int(dim) for dim in weight.shape)
    image = window.padded(data)
    batch, _, height, width = (int(dim) for dim in image.shape)
    ci, ry, rx = (
        te.reduce_axis((0, extent), name) for extent, name in zip((channels, *kernel), ("ci", "ry", "rx"), strict=True)
    )

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        return te.sum(image(n, ci, *window.at(y, x, ry, rx)) * weight(k, ci, ry, rx, lane), axis=[ci, ry, rx])

    shape = (batch, blocks, *window.extents(height, width, (kernel[0], kernel[1])), size)
    return te.compute(shape, element, name=CONV)


_LEAST_GAIN, _SHORTEST_RUN = 1.1, 4


def input_run(channels: int, lanes: int) -> int:
    """The number of input channels that lie together in the weights: a block, or a part of one where whole blocks would
    multiply many zeros. The image's blocks stay: 24 channels in 2 blocks of 16 are read as 3 runs of 8.
    """
    runs = [run for run in (lanes // 2, lanes // 4) if run >= _SHORTEST_RUN]
    read = {run: -(-channels // run) * run for run in (lanes, *runs)}
    best = min(read, key=lambda run: (read[run], -run))
    return best if read[lanes] >= _LEAST_GAIN * read[best] else lanes


def conv2d(data: te.Tensor, weight: te.Tensor, window: Window, whole: Bounds | None = None) -> te.Tensor:
    """(N, C/b, H, W, b) and (K/b, C/s, R, S, s, b), the last two input and output channels -> (N, K/b, Y, X, b). Input
    channels are in runs of s, which divides b. `whole`: both are whole numbers.
    """
    return _conv2d(data, weight, window, lambda _: 0, whole)


def grouped_conv2d(data: te.Tensor, weight: te.Tensor, window: Window, group: tuple[int, int]) -> te.Tensor:
    """As `conv2d`, with the weights of groups of (outputs, inputs), which fill blocks of their own or are those of
    `pack_groups`.
    """
    in_blocks, size = int(data.shape[1]), int(weight.shape[-1])
    read = -(-int(weight.shape[1]) * int(weight.shape[-2]) // size)
    return _conv2d(data, weight, window, lambda k: te.min(first_input(k * size, *group) // size, in_blocks - read))


def first_input(channel: Any, outputs: int, inputs: int) -> Any:
    """The first input channel of the group of an output channel; `outputs` and `inputs` are those of a group."""
    return channel // outputs * inputs


def pack_groups(weight: _Array, groups: int, lanes: int) -> _Array:
    """(K, C/groups, R, S) -> (K/b, blocks of a run, R, S, b, b)."""
    outputs, inputs = len(weight) // groups, weight.shape[1]
    whole = np.zeros((len(weight), groups * inputs, *weight.shape[2:]), weight.dtype)
    for channel in range(len(weight)):
        first = first_input(channel, outputs, inputs)
        whole[channel, first : first + inputs] = weight[channel]
    packed = pack(pack(whole, 1, lanes), 0, lanes)
    begins = range(0, len(weight), lanes)
    ends = (min(begin + lanes, len(weight)) for begin in begins)
    runs = [
        (first_input(begin, outputs, inputs) // lanes, -(-first_input(end - 1 + outputs, outputs, inputs) // lanes))
        for begin, end in zip(begins, ends, strict=True)
    ]
    length = max(end - begin for begin, end in runs)
    most = packed.shape[1] - length
    return np.stack([blocks[min(begin, most) :][:length] for blocks, (begin, _) in zip(packed, runs, strict=True)])


def _conv2d(
    data: te.Tensor, weight: te.Tensor, window: Window, first_block: Callable[[Any], Any], whole: Bounds | None = None
) -> te.Tensor:
    """Each block of outputs reads the blocks of inputs that it has weights for, from `first_block` on.

    Where rows alone are padded, a row is inside or outside for all columns of a tile. For one block of outputs this
    takes less time than zeros that are copied around the image; for more, twice the time of the products.
    """
    out_blocks, in_blocks, *kernel, in_size, out_size = (int(dim) for dim in weight.shape)
    runs = out_size // in_size
    top, left, bottom, right = window.padding
    by_rows = out_blocks == 1 and whole is None and not (left or right) and kernel[1] == 1
    image = data if by_rows else window.padded(data)
    batch, _, height, width, _ = (int(dim) for dim in image.shape)
    height += top + bottom if by_rows else 0
    extents = (in_blocks, *kernel, in_size)
    co, ry, rx, ci = (
        te.reduce_axis((0, extent), name) for extent, name in zip(extents, ("co", "ry", "rx", "ci"), strict=True)
    )

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        block, channel = (co, ci) if runs == 1 else (co // runs, co % runs * in_size + ci)
        index = n, first_block(k) + block, *window.at(y, x, ry, rx), channel
        pixel = _tap(data, window, index, tvm.tirx.const(0, data.dtype)) if by_rows and top + bottom else image(*index)
        return te.sum(pixel * weight(k, co, ry, rx, ci, lane), axis=[co, ry, rx, ci])

    shape = (batch, out_blocks, *window.extents(height, width, (kernel[0], kernel[1])), out_size)
    return te.compute(shape, element, name=CONV, attrs=_attributes(whole))


def depthwise_conv2d(data: te.Tensor, weight: te.Tensor, window: Window) -> te.Tensor:
    """Each channel by itself: (N, C/b, H, W, b) and (C/b, R, S, b) -> (N, C/b, Y, X, b)."""
    blocks, *kernel, size = (int(dim) for dim in weight.shape)
    batch, _, height, width, _ = (int(dim) for dim in data.shape)
    top, left, bottom, right = window.padding
    height, width = height + top + bottom, width + left + right
    zero = tvm.tirx.const(0, data.dtype)
    ry, rx = (te.reduce_axis((0, extent), name) for extent, name in zip(kernel, ("ry", "rx"), strict=True))

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        index = n, k, *window.at(y, x, ry, rx), lane
        pixel = _tap(data, window, index, zero) if any(window.padding) else data(*index)
        return te.sum(pixel * weight(k, ry, rx, lane), axis=[ry, rx])

    shape = (batch, blocks, *window.extents(height, width, (kernel[0], kernel[1])), size)
    return te.compute(shape, element, name=DEPTHWISE)


def max_pool2d(data: te.Tensor, kernel: tuple[int, int], window: Window, extents: tuple[int, int]) -> te.Tensor:
    """(N, C/b, H, W, b) -> (N, C/b, Y, X, b) with `extents` (Y, X): one expression, without a reduction.

    TVM would put the loops of a reduction's window inside the loop over a block's channels, and could not use vectors.
    """
    lowest = tvm.tirx.min_value(data.dtype)

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        taps = (_tap(data, window, (n, k, *window.at(y, x, *step), lane), lowest) for step in np.ndindex(kernel))
        return functools.reduce(te.max, taps)

    return te.compute((*data.shape[:2], *extents, data.shape[4]), element, name="max_pool2d")


def avg_pool2d(
    data: te.Tensor, kernel: tuple[int, int], window: Window, extents: tuple[int, int], *, of_padding: bool
) -> te.Tensor:
    """As `max_pool2d`; the mean counts the padding's zeros when it is `of_padding`. Without dilation."""
    zero = tvm.tirx.const(0, data.dtype)

    def count(start: Any, step: int, extent: int) -> Any:
        return te.min(start + step, extent) - te.max(start, 0)

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        taps = (_tap(data, window, (n, k, *window.at(y, x, *step), lane), zero) for step in np.ndindex(kernel))
        total = functools.reduce(operator.add, taps)
        if of_padding or not any(window.padding):
            return total * tvm.tirx.const(1 / math.prod(kernel), data.dtype)
        top, left = y * window.strides[0] - window.padding[0], x * window.strides[1] - window.padding[1]
        counted = count(top, kernel[0], data.shape[2]) * count(left, kernel[1], data.shape[3])
        return total / counted.astype(data.dtype)

    return te.compute((*data.shape[:2], *extents, data.shape[4]), element, name="avg_pool2d")


def _tap(data: te.Tensor, window: Window, index: tuple[Any, ...], outside: Any) -> Any:
    """The element of the padded image at `index`."""
    n, k, y, x, lane = index
    y, x = y - window.padding[0], x - window.padding[1]
    inside = tvm.tirx.all(y >= 0, y < data.shape[2], x >= 0, x < data.shape[3])
    return tvm.tirx.if_then_else(inside, data(n, k, y, x, lane), outside)


def matmul(data: te.Tensor, weight: te.Tensor, whole: Bounds | None = None) -> te.Tensor:
    """(..., M, K) and (N/b, K, b) -> (..., M, N/b, b), which lies in memory as (..., M, N). A packed operand that is
    computed may have axes before these. Then `data` has the same ones or none. `whole`: both are whole numbers. The
    product is at least of float32.
    """
    *batch, blocks, depth, size = (int(dim) for dim in weight.shape)
    k, alike = te.reduce_axis((0, depth), "k"), len(data.shape) > _MATRIX_RANK
    is_half = str(data.dtype) in HALVES

    def wide(value: Any) -> Any:
        return value.astype("float32") if is_half else value

    def element(*index: Any) -> Any:
        *rows, block, lane = index
        one, other = data(*(rows if alike else rows[-1:]), k), weight(*rows[: len(batch)], block, k, lane)
        return te.sum(wide(one) * wide(other), axis=[k])

    outer = data.shape[:-2] if alike else batch
    return te.compute((*outer, *data.shape[-2:-1], blocks, size), element, name=MATMUL, attrs=_attributes(whole))


def _attributes(whole: Bounds | None) -> dict[str, Any] | None:
    return {WHOLE_NUMBERS: whole.numbers()} if whole else None


def packed_columns(data: te.Tensor, size: int) -> te.Tensor:
    """(..., K, N) -> (..., N/b, K, b): the right operand of a product. 0 in the lanes that stand for no column."""
    *batch, depth, columns = (int(dim) for dim in data.shape)
    count = block_count(columns, size)

    def element(*index: Any) -> Any:
        *outer, block, k, lane = index
        column = block * size + lane
        value = data(*outer, k, column)
        if count * size == columns:
            return value
        return tvm.tirx.if_then_else(column < columns, value, tvm.tirx.const(0, data.dtype))

    return te.compute((*batch, count, depth, size), element, name="packed_columns")


def packed_rows(count: int, rows: int, depth: int, size: int) -> tirx.PrimFunc:
    """(count, N, K) -> (count, N/b, K, b), as `packed_columns` of it turned round: a fixed kernel, for float32 and a
    depth in whole blocks. A block is turned round in registers.
    """
    blocks = block_count(rows, size)
    with IRBuilder() as made, builder.prim_func(is_private=True, s_tir=True):
        builder.func_name("pack")
        builder.func_attr({"tirx.noalias": True, **OPAQUE})
        data = builder.arg("data", builder.buffer((count, rows, depth), "float32"))
        packed = builder.arg("packed", builder.buffer((count, blocks, depth, size), "float32"))
        with builder.sblock("root"):
            builder.reads([])
            builder.writes([])
            with builder.parallel(0, count * blocks) as task, builder.serial(0, depth // size) as part:
                outer, block, first = task // blocks, task % blocks, part * size
                tile = builder.alloc_buffer((size, size), "float32", scope="local")
                for at in range(size):
                    row = block * size + at
                    with builder.vectorized(0, size) as k:
                        value = data[outer, tirx.min(row, rows - 1), first + k]
                        value = tirx.Select(row < rows, value, tirx.const(0, "float32"))
                        builder.buffer_store(tile, value, [at, k])
                for at in range(size):
                    with builder.vectorized(0, size) as lane:
                        builder.buffer_store(packed, tile[lane, at], [outer, block, first + at, lane])
    return made.get()
