"""Convolutions in groups, whether these are whole blocks or not: each block of outputs reads the run of input blocks
that holds the inputs of its groups, with zeros in the weights for all others there.

A group of 68 channels is 4.25 blocks of 16. Its block of outputs reads 5 or 6 blocks of inputs, one that belongs to two
groups 10; so all of them read 10. That costs less than a kernel over parts of blocks, where no vector fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fractune_workers.children.layouts.blocks import pack

_Array = npt.NDArray[Any]


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
