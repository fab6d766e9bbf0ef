"""Finalists timed interleaved, one repeat each a round, so that all are timed under the same conditions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fractune_core.records import WARM, TimingPolicy

Timer = Callable[[str, TimingPolicy, int], list[float]]
"""Seconds of one call of a kernel, by name, under a policy; the number is the calls that may fill a repeat."""

_FEWEST_REPEATS = 3
_SLOW_S = 0.2
_FAR_BEHIND = 3.0
"""times the time of the fastest: with any number of repeats, the kernel is not the winner"""
_FIRST_MS = 1.0
"""the length of the first timing of each kernel"""
_LONG_CALL_S = 0.05
"""A longer call takes about as long with a cold cache as with a warm one, and loading its code is a small part of it"""
_CLEAR_S, _CLEARLY = 0.002, 10.0
"""The reference is timed by its check beyond so long, and so many times the fastest. The first call of a kernel takes
some 0.1 ms more than later ones"""
_SPARE = 1.05
"""A repeat that comes out a little too short is made again, and longer"""


@dataclass(frozen=True)
class Reference:
    """The kernel to which the outputs of others are compared: the untuned default."""

    name: str = ""
    """empty: none"""
    check_s: float = 0.0
    """seconds of the call by which it was checked; 0 = not known"""

    def is_clear(self, fastest_s: float) -> bool:
        """Whether the check shows its time well enough, beside a fastest kernel of so many seconds."""
        return self.check_s > _LONG_CALL_S or self.check_s > max(_CLEAR_S, _CLEARLY * fastest_s)


def time_interleaved(
    names: Sequence[str], policy: TimingPolicy, timed: Timer, reference: Reference = Reference()
) -> tuple[dict[str, TimingPolicy], dict[str, list[float]]]:
    """The effective policy, and the seconds of one call in each repeat, by name.

    The first timing of each kernel is short. It warms up, and shows whether the kernel is slow, or far behind the
    fastest. A slow kernel gets four repeats, and the first chooses. A kernel far behind gets three repeats. None of
    them chooses, because the kernel cannot win. A kernel that is slow and far behind gets one repeat.

    The reference gets a single repeat if it is far behind. If the call by which it was checked took long, or clearly
    longer than the others, that call is its first timing. If the reference is also far behind, then the timer does not
    call it again.
    """
    single = replace(policy, name="single", warmups=0, repeats=1)
    short = replace(single, min_repeat_ms=min(policy.min_repeat_ms, _FIRST_MS))
    first = {name: timed(name, short, 1)[0] for name in names if name != reference.name}
    is_known = reference.is_clear(min(first.values(), default=math.inf))
    if reference.name in names:
        first[reference.name] = reference.check_s if is_known else timed(reference.name, short, 1)[0]
    fastest_s = min(first.values())
    kept = {
        name: _policy_for(secs, fastest_s, policy, is_reference=name == reference.name) for name, secs in first.items()
    }
    # A single call that is longer than a repeat is a whole repeat.
    whole_s = {name: 0.0 if is_known and name == reference.name else policy.min_repeat_ms * 1e-3 for name in names}
    run_secs = {
        name: [secs] if not kept[name].warmups and secs >= whole_s[name] else [] for name, secs in first.items()
    }
    for _ in range(policy.repeats):
        for name in names:
            if len(run_secs[name]) < kept[name].repeats:
                # The first timing is over colder caches than the repeats, which would come out too short.
                calls = calls_for(min([first[name], *run_secs[name]]), policy)
                run_secs[name] += timed(name, single, calls)
    return kept, run_secs


def _policy_for(secs: float, fastest_s: float, policy: TimingPolicy, *, is_reference: bool) -> TimingPolicy:
    # One call over a cold cache is too little to judge by.
    is_behind = policy.cache == WARM and secs > _FAR_BEHIND * fastest_s
    if is_behind:
        repeats = 1 if is_reference or secs > _SLOW_S else _FEWEST_REPEATS
        return replace(policy, warmups=0, repeats=repeats, choosing=0)
    if secs > _SLOW_S:
        return replace(policy, warmups=0, repeats=1 + _FEWEST_REPEATS, choosing=1)
    return policy


def is_timed_by(first_s: float, bar_s: float) -> bool:
    """Whether a trial's first call of `first_s` seconds is all of its timing: it is slow, and cannot win.

    `bar_s`: the slowest that can win. Without this, the few blocks of two random schedules of a matrix product took 8
    of the first 9 seconds on an H200. A call so long that loading the code does not count is above `_LONG_CALL_S`.
    """
    return first_s > _SLOW_S or (first_s > _LONG_CALL_S and first_s > bar_s)


def calls_for(secs: float, policy: TimingPolicy) -> int:
    """The calls that fill a repeat, so that the timer need not search them each time."""
    return max(1, math.ceil(_SPARE * policy.min_repeat_ms * 1e-3 / secs)) if secs > 0 else 1
