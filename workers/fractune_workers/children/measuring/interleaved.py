"""Finalists timed interleaved, one repeat each a round, so that all are timed under the same conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fractune_core.records import WARM, TimingPolicy

Timer = Callable[[str, TimingPolicy, int], list[float]]
"""Seconds of one call of a kernel, by name, under a policy; the number is the calls that may fill a repeat."""

_FEWEST_REPEATS = 3
_SLOW_S = 0.2
_FAR_BEHIND = 3.0
"""times the time of the fastest: with any number of repeats, the kernel is not the winner"""
_SPARE = 1.05
"""A repeat that comes out a little too short is made again, and longer"""


def time_interleaved(
    names: Sequence[str], policy: TimingPolicy, timed: Timer
) -> tuple[dict[str, TimingPolicy], dict[str, list[float]]]:
    """The effective policy, and the seconds of one call in each repeat, by name.

    The first timing of each kernel warms up, and shows whether it is slow, or far behind the fastest. These kernels get
    the fewest repeats, and all their timings are kept (TVM calls a kernel once before it times it). The first timing of
    a slow kernel chooses. The timings of a kernel far behind are not divided, because it is not chosen. A kernel that
    is both, like the untuned default of a large operator, gets only its first timing.
    """
    single = replace(policy, name="single", warmups=0, repeats=1)
    first = {name: timed(name, single, 1)[0] for name in names}
    kept = {name: _policy_for(secs, min(first.values()), policy) for name, secs in first.items()}
    run_secs = {name: [] if kept[name].warmups else [secs] for name, secs in first.items()}
    for _ in range(policy.repeats):
        for name in names:
            if len(run_secs[name]) < kept[name].repeats:
                run_secs[name] += timed(name, single, _calls(first[name], policy))
    return kept, run_secs


def _policy_for(secs: float, fastest_s: float, policy: TimingPolicy) -> TimingPolicy:
    # One call over a cold cache is too little to judge by.
    is_behind = policy.cache == WARM and secs > _FAR_BEHIND * fastest_s
    if is_behind:
        repeats = 1 if secs > _SLOW_S else _FEWEST_REPEATS
        return replace(policy, warmups=0, repeats=repeats, choosing=0)
    if secs > _SLOW_S:
        return replace(policy, warmups=0, repeats=1 + _FEWEST_REPEATS, choosing=1)
    return policy


def _calls(secs: float, policy: TimingPolicy) -> int:
    """The calls that fill a repeat, so that the timer need not search them each time."""
    return max(1, math.ceil(_SPARE * policy.min_repeat_ms * 1e-3 / secs)) if secs > 0 else 1
