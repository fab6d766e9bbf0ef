"""Finalists beside each other: timed in turns, outputs compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_MIN_TURN_S = 0.02
"""One turn of a finalist calls it until this long has passed"""
_QUIET_LOOK_S, _QUIET_LOOKS = 0.01, 100


def time_in_turns(
    finalists: Mapping[str, Callable[[], Any]], repeats: int, *, apart: bool = False
) -> dict[str, list[float]]:
    """Seconds of one call by finalist, `repeats` of them, in turns: all see the same machine.

    Every other round goes in the other order, so that none always comes after the same other. With `apart`, a turn
    begins only when the threads of the one before have gone to sleep: those of another thread pool would spin on for a
    while, on the cores of the next.
    """
    for call in finalists.values():
        call()
    run_secs: dict[str, list[float]] = {name: [] for name in finalists}
    for turn in range(repeats):
        for name in list(finalists)[:: -1 if turn % 2 else 1]:
            if apart:
                wait_for_quiet()
                finalists[name]()
            run_secs[name].append(_one_turn(finalists[name]))
    return run_secs


def wait_for_quiet() -> None:
    """Until this process hardly uses its processor, for a second at most."""
    for _ in range(_QUIET_LOOKS):
        used_s = time.process_time()
        time.sleep(_QUIET_LOOK_S)
        if time.process_time() - used_s < _QUIET_LOOK_S / 10:
            return


def _one_turn(call: Callable[[], Any]) -> float:
    """Seconds of one call, averaged over as many as fill the shortest turn."""
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        spent = time.perf_counter() - start
        if spent >= _MIN_TURN_S:
            return spent / calls


def differences(outputs: Sequence[Array], reference: Sequence[Array]) -> tuple[float, float]:
    """Largest absolute difference, and that over the reference's largest value; infinite for NaN."""
    import numpy as np

    absolute = relative = 0.0
    for output, wanted in zip(outputs, reference, strict=True):
        out, ref = output.astype("float64"), wanted.astype("float64")
        if not np.array_equal(np.isfinite(out), np.isfinite(ref)):
            return float("inf"), float("inf")
        finite = np.isfinite(ref)
        largest = float(np.abs(out[finite] - ref[finite]).max(initial=0.0))
        scale = float(np.abs(ref[finite]).max(initial=0.0)) or 1.0
        absolute, relative = max(absolute, largest), max(relative, largest / scale)
    return absolute, relative


def spread_text(run_secs: Sequence[float]) -> str:
    """`1.23 ms (1.20 .. 1.31)`: median, smallest and largest."""
    return f"{statistics.median(run_secs) * 1e3:.4g} ms ({min(run_secs) * 1e3:.4g} .. {max(run_secs) * 1e3:.4g})"
