"""Groups of a convolution that are no whole blocks: several of them as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]


def merged(weight: _Array, groups: int, lanes: int) -> tuple[_Array, int]:
    """The weight (outputs, inputs of a group, ...) of a convolution with fewer groups that computes the same, and how
    many these are.

    As many as make whole blocks of `lanes` channels become one, or all of them, with zeros where one does not read what
    another does. These products cost less than a kernel over parts of blocks, where no vector fits. More than `lanes`
    together are left as they are, and so are depthwise convolutions.
    """
    outputs, inputs = len(weight) // groups, weight.shape[1]
    if groups == 1 or inputs == outputs == 1:
        return weight, groups
    divisors = [count for count in range(1, groups + 1) if groups % count == 0]
    whole = (count for count in divisors if count * outputs % lanes == count * inputs % lanes == 0)
    together = next(whole, groups)
    if not 1 < together <= lanes:
        return weight, groups
    result = np.zeros((len(weight), together * inputs, *weight.shape[2:]), weight.dtype)
    for group in range(groups):
        rows, place = slice(group * outputs, (group + 1) * outputs), group % together * inputs
        result[rows, place : place + inputs] = weight[rows]
    return result, groups // together
