"""Blocked layouts: one axis of a tensor, its channels, in blocks of the processor's vector width.

In blocks of 16 along its axis 1, a tensor of shape (N, C, H, W) lies as (N, ceil(C / 16), H, W, 16). The innermost loop
is always one vector, whatever the image's size. Where C is not a multiple of the block, the last block is filled up.

Channels of groups may lie in parts with blocks of their own, so that no block has channels of two groups. For example,
136 channels in 4 parts are 4 times 34, and lie in 4 times 3 blocks of 16.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import te

from fractune_core.names import FROM_BLOCKS, TO_BLOCKS

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
