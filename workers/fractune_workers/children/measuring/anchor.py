"""The anchor: a fixed kernel, timed beside the candidates."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import te

from fractune_core.records import TimingPolicy
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.artifacts import build_object, load_objects
from fractune_workers.children.tvm_api.processor import Processor

_ANCHOR_SIZE = 128
_ANCHOR_POLICY = TimingPolicy("anchor", warmups=1, repeats=3, min_repeat_ms=3.0)


class Anchor:
    """When its time drifts, the machine changed, not the code."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._first_s = 0.0

    def ratio(self) -> float:
        """Its time now over its time when it was timed first: not at the start, when all of a fleet is starting."""
        now_s = self._seconds()
        self._first_s = self._first_s or now_s
        return now_s / self._first_s


def matmul_anchor(target: Any, processor: Processor) -> Callable[[], float]:
    """The seconds that a matrix product takes on a CPU."""
    kernel = load_objects([build_object(_matmul(_ANCHOR_SIZE), target)])
    args = random_args([["TENSOR", "float32", [_ANCHOR_SIZE, _ANCHOR_SIZE]]] * 3, 0, processor)
    timed = partial(processor.time, kernel, args, _ANCHOR_POLICY)
    return lambda: statistics.median(timed())


def _matmul(size: int) -> Any:
    left = te.placeholder((size, size), name="left")
    right = te.placeholder((size, size), name="right")
    k = te.reduce_axis((0, size), name="k")
    product = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product")
    return tvm.IRModule({"main": te.create_prim_func([left, right, product])})
