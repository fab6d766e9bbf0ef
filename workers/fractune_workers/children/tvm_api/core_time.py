"""Time on a core: what a call takes on a CPU, without what its thread was kept from the core for.

For a single thread: one that waits for others gives its core to whoever wants it, and would seem faster for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_SPARE = 1.05
_GROWTH = 1.6
"""A repeat that was too short is made again, with so many times the calls at least"""

Evaluate = Callable[[int], float]
"""Seconds of one call by the wall clock, the mean of so many, which one more has come before"""


def core_times(evaluate: Evaluate, repeats: int, min_repeat_s: float, calls: int = 1, warmups: int = 0) -> list[float]:
    """Seconds on a core of one call, `repeats` times after `warmups`; each repeat spends `min_repeat_s` there,
    beginning with as many calls as `calls`.
    """
    run_secs: list[float] = []
    while len(run_secs) < warmups + repeats:
        secs = _core_s(evaluate, calls)
        if secs * calls >= min_repeat_s:
            run_secs.append(secs)
            if calls == 1:
                warmups = 0  # where a single call takes so long, the one before it has warmed up enough
        else:
            needed = math.ceil(_SPARE * min_repeat_s / secs) if secs > 0 else 0
            calls = max(needed, math.ceil(_GROWTH * calls))
    return run_secs[warmups:]


def _core_s(evaluate: Evaluate, calls: int) -> float:
    """What the thread spent on all calls, the first too: whichever was interrupted, the interruption does not count.

    Where there was none, the wall clock has less beside the calls in it, and is the smaller.
    """
    before_s = time.thread_time()
    wall_s = evaluate(calls)
    return min(wall_s, (time.thread_time() - before_s) / (calls + 1))
