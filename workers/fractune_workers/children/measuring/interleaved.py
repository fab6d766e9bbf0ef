"""Finalists timed in turn, one repeat each a round, so that all are timed under the same conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fractune_core.records import WARM, TimingPolicy

Timer = Callable[[str, TimingPolicy, int], list[float]]
"""Seconds of one call of a kernel, by name, under a policy; the number says how many calls may fill a repeat"""

_FEWEST_REPEATS = 3
_SLOW_S = 0.2
_FAR_BEHIND = 3.0
"""times as slow as the fastest: no number of repeats makes it the winner"""
_SPARE = 1.05
"""A repeat that comes out a little too short is made again, and longer"""


def time_interleaved(
    names: Sequence[str], policy: TimingPolicy, timed: Timer
) -> tuple[dict[str, TimingPolicy], dict[str, list[float]]]:
    """The policy that was kept to, and the seconds of one call in each repeat, by name.

    The first timing of each warms up, and tells what is slow, or far behind the fastest: such a kernel gets the fewest
    repeats, and none of its timings is dropped (TVM calls a kernel once before it times it). Of one that is slow the
    first chooses; those of one that is far behind are not divided, because it is not chosen. One that is both, as the
    untuned default of a large operator, gets no more than its first.
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
    # One call over a cold cache says too little to judge by.
    is_behind = policy.cache == WARM and secs > _FAR_BEHIND * fastest_s
    if is_behind:
        repeats = 1 if secs > _SLOW_S else _FEWEST_REPEATS
        return replace(policy, warmups=0, repeats=repeats, choosing=0)
    if secs > _SLOW_S:
        return replace(policy, warmups=0, repeats=1 + _FEWEST_REPEATS, choosing=1)
    return policy


def _calls(secs: float, policy: TimingPolicy) -> int:
    """How many calls fill a repeat, so that it need not be found out each time."""
    return max(1, math.ceil(_SPARE * policy.min_repeat_ms * 1e-3 / secs)) if secs > 0 else 1
