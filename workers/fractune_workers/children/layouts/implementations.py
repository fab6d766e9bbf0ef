"""Other ways to compute a blocked convolution than the direct one: each takes its place as one kernel of the same
image and output, with weights of its own.

Which one is fastest depends on channels, extents and the share; that is for measurements to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tvm import te

from fractune_workers.children.layouts.kernels import Window
from fractune_workers.children.layouts.winograd import WINOGRAD2, WINOGRAD4

_Array = npt.NDArray[Any]
_WEIGHT_DIMS = 6


@dataclass(frozen=True)
class Implementation:
    """Of a convolution with one group over blocks."""

    fits: Callable[[Window, tuple[int, ...], tuple[int, int]], bool]
    """of its window, the shape of the direct one's weights (K/b, C/b, R, S, b, b), and the image's height and width"""
    pack: Callable[[_Array], _Array]
    """its own weights, made of the direct one's"""
    compute: Callable[[te.Tensor, te.Tensor, Window], te.Tensor]
    """the output, of an image (N, C/b, H, W, b) and its own weights: as `kernels.conv2d`"""


IMPLEMENTATIONS = {
    f"winograd{winograd.outputs}": Implementation(winograd.fits, winograd.pack, winograd.compute)
    for winograd in (WINOGRAD2, WINOGRAD4)
}
"""by name; the direct one, which everything fits, has none"""


def repacked(name: str, weights: _Array) -> _Array:
    """The weights of the implementation called `name`, of the direct one's."""
    return IMPLEMENTATIONS[name].pack(weights)


def own_arguments(name: str, arguments: Sequence[_Array]) -> list[_Array]:
    """The arguments of an operator as the implementation called `name` takes them, of those of the direct one.

    Its weights are in blocks of both kinds of channels, and nothing else has as many dimensions.
    """
    return [repacked(name, each) if each.ndim == _WEIGHT_DIMS else each for each in arguments]
