"""The layout rule of transposed convolutions with constant weights: as dense convolutions, one for each phase.

With steps of s, output s * m + r adds up the inputs m - j times the weights r + s * j. So the outputs of each phase r
are a convolution of the whole image with a part of the weights. One convolution computes all phases, as channels of
their own, and a copy puts its pixels in order. (Shi et al. 2016, "Is the deconvolution layer the same as a
convolutional layer?", arXiv:1609.07009.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te

from fractune_workers.children.layouts import products
from fractune_workers.children.layouts.kernels.direct import Blocks, Window
from fractune_workers.children.layouts.planner import CHANNELS, Array, MadeOrPlain, Planner
from fractune_workers.children.rewriting.expressions import shape_of

_LAYOUTS = "NCHW", "IOHW", "NCHW"
_MOST_ZEROS = 4
"""weights that phases have, zeros included, over those of the model: beyond, the other way takes less time, and less
memory"""


@dataclass(frozen=True)
class _Line:
    """One axis of the image."""

    step: int
    taps: int
    """weights of each phase; where there are fewer, zeros"""
    padding: tuple[int, int]
    """of the convolution of the phases"""
    first: int
    """pixels of the convolution's, put in order, before the first one of the output"""

    @classmethod
    def of(cls, size: int, out: int, step: int, reach: int, before: int) -> _Line | None:
        """Of `size` inputs and `out` outputs, where an input reaches `reach` outputs, and `before` outputs that it
        reaches are left out. None where an input reaches no output at all.
        """
        taps, whole = -(-reach // step), before // step
        padding = taps - 1 - whole, -(-(before + out) // step) - size
        return cls(step, taps, padding, before - whole * step) if min(padding) >= 0 else None


def conv2d_transpose(planner: Planner, call: Any) -> MadeOrPlain:
    """In blocks; a result of few channels is plain."""
    data, attrs, numbers = call.args[0], call.attrs, planner.constant(call.args[1])
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    if numbers is None or numbers.dtype != np.float32 or layouts != _LAYOUTS:
        return None
    window, groups, kernel = Window.of(attrs), int(attrs.groups), numbers.shape[2:]
    reaches = [(length - 1) * by + 1 for length, by in zip(kernel, window.dilation, strict=True)]
    sizes = zip(shape_of(data)[2:], shape_of(call)[2:], window.strides, reaches, window.padding[:2], strict=True)
    known = [line for each in sizes if (line := _Line.of(*each))]
    computed = prod(line.step * line.taps for line in known)
    if len(known) < len(kernel) or prod(window.strides) == 1 or computed > _MOST_ZEROS * prod(kernel):
        return None
    parts = _phases(_dilated(_by_outputs(numbers, groups), window.dilation), known)
    made = planner.blocks(shape_of(call), CHANNELS)
    top, left, bottom, right = (known[at].padding[side] for side in (0, 1) for at in (0, 1))
    of_phases = Window((1, 1), (top, left, bottom, right), (1, 1))
    source = _convolved(planner, data, parts, of_phases, groups, made)
    return None if source is None else _in_order(planner, source, known, made)


def _by_outputs(numbers: Array, groups: int) -> Array:
    """(C, K/groups, R, S) -> (K, C/groups, R, S), the weights of a convolution before they are turned around."""
    channels, outputs, *kernel = numbers.shape
    split = numbers.reshape(groups, channels // groups, outputs, *kernel).swapaxes(1, 2)
    return np.ascontiguousarray(split.reshape(groups * outputs, channels // groups, *kernel))


def _dilated(numbers: Array, dilation: Sequence[int]) -> Array:
    """The same weights without dilation, with zeros between."""
    extents = [(length - 1) * by + 1 for length, by in zip(numbers.shape[2:], dilation, strict=True)]
    whole = np.zeros((*numbers.shape[:2], *extents), numbers.dtype)
    whole[:, :, :: dilation[0], :: dilation[1]] = numbers
    return whole


def _phases(numbers: Array, lines: Sequence[_Line]) -> list[Array]:
    """(K, C, R, S) -> the weights of each phase, (K, C, taps, taps), turned around."""
    extents = [line.taps * line.step for line in lines]
    missing = [(0, extent - length) for extent, length in zip(extents, numbers.shape[2:], strict=True)]
    whole = np.pad(numbers, [(0, 0), (0, 0), *missing])
    rows, columns = (line.step for line in lines)
    return [
        np.flip(whole[:, :, row::rows, column::columns], (2, 3)) for row in range(rows) for column in range(columns)
    ]


def _convolved(
    planner: Planner, data: Any, phases: list[Array], window: Window, groups: int, made: Blocks
) -> tuple[Any, Blocks] | None:
    """The phases one after another as channels in blocks, each phase in whole blocks where `made` has several."""
    outputs = made.shape[CHANNELS]
    pixels = window.extents(*_padded(data, window), phases[0].shape[2:])
    shape = made.shape[0], outputs * len(phases), *pixels
    few = 2 * outputs <= planner.lanes
    source = planner.blocks(shape, CHANNELS, 1 if few else len(phases))
    if groups == 1:
        weights = np.concatenate(phases)
        return products.dense_conv2d(planner, data, weights, window, parts=source.parts), source
    if few or len(phases[0]) != groups or phases[0].shape[1] > 1:
        return None
    convolved = [products.depthwise_conv2d(planner, data, each, window) for each in phases]
    if any(parts > 1 for _, parts in convolved):
        return None
    return relax.op.concat([planner.emit(value) for value, _ in convolved], CHANNELS), source


def _padded(data: Any, window: Window) -> tuple[int, int]:
    top, left, bottom, right = window.padding
    height, width = shape_of(data)[2:]
    return height + top + bottom, width + left + right


def _in_order(planner: Planner, source: tuple[Any, Blocks], lines: Sequence[_Line], made: Blocks) -> MadeOrPlain:
    value, blocks = source
    (rows, columns), (top, left) = ((line.step for line in lines), (line.first for line in lines))
    whole = blocks.parts > 1 or made.shape[CHANNELS] % made.size == 0

    def place(y: Any, x: Any) -> tuple[Any, Any, Any]:
        """The phase, row and column of an output."""
        y, x = y + top, x + left
        return y % rows * columns + x % columns, y // rows, x // columns

    def in_blocks(image: te.Tensor) -> te.Tensor:
        def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
            phase, row, column = place(y, x)
            return image(n, phase * made.count + k, row, column, lane)

        return te.compute(made.physical, element, name="in_order")

    def plain(image: te.Tensor) -> te.Tensor:
        def element(n: Any, k: Any, y: Any, x: Any) -> Any:
            phase, row, column = place(y, x)
            block, lane = blocks.place(phase * made.shape[CHANNELS] + k)
            return image(n, block, row, column, lane)

        return te.compute(made.shape, element, name="in_order")

    emitted = planner.emit(value)
    if whole:
        return planner.kernel(in_blocks, emitted, name="in_order"), made
    return planner.kernel(plain, emitted, name="in_order"), None
