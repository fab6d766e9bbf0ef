"""Timing one kernel: repeats, warm-up, what its cache holds, and the anchor beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import te

from fractune_core.records import COLD, TimingPolicy
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.artifacts import build_object, load_objects
from fractune_workers.children.tvm_api.processor import Processor

_ANCHOR_SIZE = 192
_ANCHOR_POLICY = TimingPolicy("anchor", warmups=1, repeats=3, min_repeat_ms=3.0)


def time_kernel(kernel: Any, args: list[Any], policy: TimingPolicy, processor: Processor) -> list[float]:
    """Seconds of one call, `policy.repeats` times; each repeat averages calls over `min_repeat_ms`.

    Where the cache is to be cold, a repeat is one call, for TVM empties it before each repeat and not before each call.
    On a GPU the time is what passes between two events on the processor's stream.
    """
    cold = policy.cache == COLD
    # TVM's evaluator calls the kernel once before it begins, and does not wait for it when it first empties the cache.
    dropped = max(policy.warmups, 1) if cold else policy.warmups
    evaluate = kernel.time_evaluator(
        "main",
        processor.device,
        number=1,
        repeat=dropped + policy.repeats,
        min_repeat_ms=0 if cold else int(policy.min_repeat_ms),
        cache_flush_bytes=processor.flush_bytes if cold else 0,
    )
    return [float(secs) for secs in evaluate(*args).results[dropped:]]


class Anchor:
    """A fixed kernel, timed beside the candidates: when it drifts, the machine changed, not the code."""

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
    timed = partial(time_kernel, kernel, args, _ANCHOR_POLICY, processor)
    return lambda: statistics.median(timed())


def _matmul(size: int) -> Any:
    left = te.placeholder((size, size), name="left")
    right = te.placeholder((size, size), name="right")
    k = te.reduce_axis((0, size), name="k")
    product = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product")
    return tvm.IRModule({"main": te.create_prim_func([left, right, product])})
