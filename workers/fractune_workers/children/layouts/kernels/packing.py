"""The weights of implementations beside the direct one, from those of the direct one. TVM's compiler is not needed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fractune_core.operators import INT8, INT16, WINOGRAD2, WINOGRAD4
from fractune_workers.children.recurrent.packing import with_tiled_weights

_Array = npt.NDArray[Any]

OPERANDS = {INT8: ("uint8", "int8"), INT16: ("int16", "int16")}
"""types of the data and of the weights, by the name of an integer implementation, the faster first"""
OF_WEIGHTS: dict[str, _Array] = {
    WINOGRAD2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]) / 2,
    WINOGRAD4: np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24,
}
"""Winograd's G, of shape (m + 2, 3), by implementation: weights w become G w G^T"""
_WEIGHT_DIMS = 6
_RANGE = 2
"""the smallest and the largest number"""


def group_of(dtype: str) -> int:
    """Neighbouring numbers of this type that lie together in 32 bits."""
    return 4 // np.dtype(dtype).itemsize


def pack_integers(name: str, weights: _Array) -> _Array:
    """The direct kernel's weights (..., K, b) as (..., K/g, b, g), with zeros behind the last of K. For a product K is
    its depth, for a convolution a block of input channels.
    """
    data, dtype = OPERANDS[name]
    group = group_of(data)
    *outer, depth, lanes = weights.shape
    groups = -(-depth // group)
    missing = [(0, 0)] * (weights.ndim - 2) + [(0, groups * group - depth), (0, 0)]
    grouped = np.pad(weights, missing).reshape(*outer, groups, group, lanes)
    return np.ascontiguousarray(grouped.swapaxes(-1, -2)).astype(dtype)


def in_whole_blocks(weights: _Array) -> _Array:
    """(K/b, C/s, R, S, s, b) -> (K/b, C/b, R, S, b, b): input channels in blocks, with zeros behind the last."""
    outputs, runs, *kernel, run, lanes = weights.shape
    parts = lanes // run
    blocks = -(-runs // parts)
    missing = [(0, 0)] * weights.ndim
    missing[1] = (0, blocks * parts - runs)
    split = np.pad(weights, missing).reshape(outputs, blocks, parts, *kernel, run, lanes)
    return np.moveaxis(split, 2, 4).reshape(outputs, blocks, *kernel, lanes, lanes)


def pack_winograd(name: str, weights: _Array) -> _Array:
    """(K/b, C/s, 3, 3, s, b) -> (m + 2, m + 2, K/b, C/b, b, b), computed in float64."""
    of_weights, weights = OF_WEIGHTS[name], in_whole_blocks(weights)
    # One product with all taps: an einsum over two of them spends its time on transposes.
    by_tap = np.ascontiguousarray(weights.transpose(2, 3, 0, 1, 4, 5), np.float64)
    taps, others = by_tap.shape[:2], by_tap.shape[2:]
    packed = np.kron(of_weights, of_weights) @ by_tap.reshape(math.prod(taps), -1)
    return packed.astype(weights.dtype).reshape(len(of_weights), len(of_weights), *others)


def own_arguments(name: str, arguments: Sequence[_Array], described: Sequence[Any]) -> list[_Array]:
    """The arguments of an operator for the implementation called `name`, from the arguments of the direct one, which
    `described` describes (`tvm_api.traces.args_of`). The direct one of a recurrence reads packed weights too.

    Weights of whole numbers are the second argument of whole numbers. They stay where they are computed. Weights of
    other convolutions are in blocks of both kinds of channels, and have more dimensions than all other arguments. In a
    fused model each slot has weights of its own.
    """
    if name in OPERANDS:
        _, weights = (at for at, (_, _, _, *bounds) in enumerate(described) if bounds and bounds[0])
        if len(described[weights][3]) > _RANGE:
            return list(arguments)
        return [pack_integers(name, each) if at == weights else each for at, each in enumerate(arguments)]
    if name not in OF_WEIGHTS:
        return with_tiled_weights(name, arguments, described)
    most = max(each.ndim for each in arguments)
    return [_repacked_slots(name, each) if each.ndim == most else each for each in arguments]


def _repacked_slots(name: str, weights: _Array) -> _Array:
    if weights.ndim == _WEIGHT_DIMS:
        return pack_winograd(name, weights)
    return np.stack([pack_winograd(name, each) for each in weights])
