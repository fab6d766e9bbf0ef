"""Blocked layouts: one axis of a tensor, its channels, in blocks of the processor's vector width.

A tensor of shape (N, C, H, W) with its axis 1 in blocks of 16 lies as (N, ceil(C / 16), H, W, 16): the innermost loop
is always one vector, whatever the image's size. Where C is no multiple of the block, the last one is filled up.

Channels that belong to groups may lie in as many parts, each with blocks of its own, so that no block has channels of
two groups: 136 channels in 4 parts are 4 times 34, and lie in 4 times 3 blocks of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import te

from fractune_core.names import FROM_BLOCKS, TO_BLOCKS

_MANY = 16
"""blocks: one more than so many is next to nothing to compute"""


@dataclass(frozen=True)
class Blocks:
    """How a plain tensor lies in blocks: with `shape`, of which `axis` is in blocks of `size`."""

    shape: tuple[int, ...]
    axis: int
    size: int
    dropped: tuple[int, ...] = ()
    """axes of extent 1 that the plain tensor lacks: a squeeze or a reduction leaves the rank in blocks as it was"""
    parts: int = 1
    """of how many equal parts the axis is, each in blocks of its own"""

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
    def physical(self) -> tuple[int, ...]:
        """The shape in memory."""
        return (*self.shape[: self.axis], self.count, *self.shape[self.axis + 1 :], self.size)

    def channel(self, block: Any, lane: Any) -> tuple[Any, Any]:
        """What a lane stands for: the channel, and whether there is such."""
        blocks = self.count // self.parts
        within = block % blocks * self.size + lane
        return block // blocks * self._part + within, within < self._part

    def place(self, channel: Any) -> tuple[Any, Any]:
        """Where a channel is: its block, and its lane."""
        if self.parts == 1:
            return channel // self.size, channel % self.size
        part, within = channel // self._part, channel % self._part
        return part * (self.count // self.parts) + within // self.size, within % self.size

    @property
    def _part(self) -> int:
        return self.shape[self.axis] // self.parts


def block_count(channels: int, size: int) -> int:
    """How many blocks hold the channels.

    Where the last of many has to be filled up anyway, it is an even number: a tile of two blocks is fast.
    """
    whole, rest = divmod(channels, size)
    count = whole + (rest > 0)
    return count + count % 2 if rest and count >= _MANY else count


def pack(array: npt.NDArray[Any], axis: int, size: int, fill: float = 0.0, parts: int = 1) -> npt.NDArray[Any]:
    """The array with its axis in blocks, in so many parts, `fill` in the lanes that stand for no channel."""
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
