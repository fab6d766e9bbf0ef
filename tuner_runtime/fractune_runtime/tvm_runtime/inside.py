"""Times the calls inside a model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fractune_core.analysis.inside import CallTime, Inside
from fractune_runtime.tvm_runtime.arena import Planned
from fractune_runtime.tvm_runtime.variants import Variant

_MOST_S, _MOST_RUNS, _FEWEST_RUNS = 1.0, 50, 3
"""of the runs with a clock, each with one without"""
_ENTRY = "main"


@dataclass
class _Clock:
    """Adds up the seconds of each name. A call that makes others counts without them."""

    secs: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    within: dict[str, int] = field(default_factory=dict)
    """the number of calls that the calls of a name make"""
    _open: list[tuple[float, list[float]]] = field(default_factory=list)
    """of each call that has not returned: its beginning, and the seconds of each call within it"""

    def note(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:  # noqa: FBT001
        """TVM's interface: before and after each call; 0 lets the call go on."""
        if before:
            self._open.append((time.perf_counter(), []))
            return 0
        begun, within = self._open.pop()
        spent = time.perf_counter() - begun
        if self._open:
            self._open[-1][1].append(spent)
        self.add(name, spent - sum(within), len(within))
        return 0

    def add(self, name: str, secs: float, within: int = 0) -> None:
        self.secs[name] = self.secs.get(name, 0.0) + secs
        self.counts[name] = self.counts.get(name, 0) + 1
        self.within[name] = self.within.get(name, 0) + within


def time_inside(variant: Variant, run: Callable[[], Any]) -> Inside:
    """Time `run`, one inference of the variant in this thread, without and with a clock at each call, alternately: a
    second in all, or three runs of each. Raises ValueError for a session of another runtime, which has no such calls.

    The least times count. Medians of the calls do not add up to the median of the model where other programs interrupt
    some runs: what is missing would look like time between the calls.
    """
    run()
    clocks, whole, clocked, begun = list[_Clock](), list[float](), list[float](), time.perf_counter()
    while len(clocks) < _FEWEST_RUNS or (len(clocks) < _MOST_RUNS and time.perf_counter() - begun < _MOST_S):
        whole.append(_secs(run))
        clocks.append(_Clock())
        clocked.append(_clocked(variant, run, clocks[-1]))
    whole_s, clocked_s = min(*whole, *clocked), min(clocked)
    calls = _calls(clocks, clocked_s - whole_s)
    if (
        sum_s := sum(each.secs for each in calls)
    ) > whole_s:  # what the clock took of microseconds is not known exactly
        calls = [replace(each, secs=each.secs * whole_s / sum_s) for each in calls]
    return Inside(tuple(sorted(calls, key=lambda each: -each.secs)), whole_s, clocked_s)


def _clocked(variant: Variant, run: Callable[[], Any], clock: _Clock) -> float:
    """Seconds of `run` with the clock at each call."""
    if isinstance(variant, Planned):
        begun = time.perf_counter()
        calls = variant.clocked(run)
        spent = time.perf_counter() - begun
        for name, secs in calls:
            clock.add(name, secs)
        return spent
    import tvm_ffi

    if variant.instrument is None:
        raise ValueError("another runtime computes the variant: it has no calls that can be timed")
    variant.instrument(tvm_ffi.convert(clock.note))
    try:
        return _secs(run)
    finally:
        variant.instrument(None)


def _calls(clocks: Sequence[_Clock], clock_s: float) -> list[CallTime]:
    """The least times of the calls without what the clock took, `clock_s` in all and as much at each call.

    A call's own time contains a part of that, at most the time of the shortest call; the rest of it lies in the call
    that made this one.
    """
    names = {name: None for clock in clocks for name in clock.secs if name != _ENTRY}
    secs = {name: min(clock.secs[name] for clock in clocks if name in clock.secs) for name in names}
    counts = {name: max(clock.counts.get(name, 0) for clock in clocks) for name in names}
    within = {name: max(clock.within.get(name, 0) for clock in clocks) for name in names}
    each_s = clock_s / max(1, sum(counts.values()))
    own_s = min([each_s, *(secs[name] / counts[name] for name in names)])
    return [
        CallTime(name, counts[name], max(0.0, secs[name] - counts[name] * own_s - within[name] * (each_s - own_s)))
        for name in names
    ]


def _secs(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
