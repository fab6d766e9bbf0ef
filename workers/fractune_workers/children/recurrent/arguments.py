"""The arguments by which the kernel of a recurrence is measured: in the ranges of a trained network's numbers."""

from __future__ import annotations

from math import sqrt
from typing import Any

from tvm.target import Target

from fractune_workers.children.recurrent.kernel import recurrence_kernel
from fractune_workers.children.recurrent.packing import Tiling
from fractune_workers.children.recurrent.recurrence import LARGEST_WEIGHT, Recurrence
from fractune_workers.children.recurrent.tilings import tiling_for

_WEIGHTS = "weights"
"""beginning of the names of the arguments"""


def arguments_of(recurrence: Recurrence, target: Target) -> list[Any]:
    """Descriptions of the plain kernel's arguments, as `traces.args_of` has them. The role of weights is the name of
    the target's computed tiling.

    Lengths are at most the steps, and a mask is 0 or 1. Products of state and weights vary as much as the state does:
    with weights of one sign, every activation would be at its limit, and hide a wrong kernel.
    """
    most = sqrt(3 / recurrence.units)
    largest = LARGEST_WEIGHT.get(recurrence.whole_weights, 0)
    bounds: dict[str, list[float]] = {
        "projected": [-2.0, 2.0],
        _WEIGHTS: [1 - largest, largest - 1] if largest else [-most, most],
        "first": [-1.0, 1.0],
        "first_cells": [-1.0, 1.0],
        "scales": [most / 2 / (largest or 1), most * 3 / 2 / (largest or 1)],
        "peepholes": [-0.5, 0.5],
        "bias": [-0.5, 0.5],
        "lengths": [1, recurrence.steps],
        "mask": [0, 1],
    }
    default = tiling_for(recurrence, target).name
    described = []
    for each in recurrence_kernel(recurrence, Tiling()).params:
        name = str(each.name).rstrip("01")
        roles = [default] if name == _WEIGHTS else []
        described.append(["TENSOR", str(each.dtype), [int(dim) for dim in each.shape], bounds.get(name, []), roles])
    return described
