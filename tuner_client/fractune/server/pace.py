"""How fast a job goes: what its follower knows beside the job's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fractune_core.jobs import JobState

PHASES = tuple(state for state in JobState if state.open)
_LATELY = 64
"""most trials that count as the last ones; of few trials the last quarter"""
_FEWEST = 8
"""fewer tell nothing of the next ones"""


@dataclass(frozen=True)
class Pace:
    """Times in seconds; empty = not known."""

    past_s: Mapping[str, float] = field(default_factory=dict)
    """what each state took in the newest finished job of the same model"""
    afterwards_s: float = 0.0
    """what the follower does itself when the job has ended"""
    peer_s: Mapping[str, float] = field(default_factory=dict)
    """one inference in ONNX Runtime, by share, as the log has it from earlier"""
    sums: Sequence[tuple[int, Mapping[str, float]]] = ()
    """after each improvement: the new trials until then, and the best of all operators together, by share. It begins
    when each operator has a time at each share"""

    def after(self, trials: int, sums: Mapping[str, float]) -> Pace:
        """With the job's new trials until now, and what its operators take together."""
        is_new = sums and (not self.sums or self.sums[-1][1] != sums)
        return replace(self, sums=(*self.sums, (trials, sums))) if is_new else self

    def gained(self, trials: int) -> tuple[int, float] | None:
        """How many of the `trials` count as the last ones, and the part of the operators' time that they saved, at the
        share where they saved most. None if that is not known.
        """
        last = min(_LATELY, trials // 4)
        before = [sums for at, sums in self.sums if at <= trials - last]
        if last < _FEWEST or not before:
            return None
        now = self.sums[-1][1]
        return last, max(1 - now[share] / secs for share, secs in before[-1].items())

    def speed_ups(self) -> Mapping[str, float]:
        """How many times as fast the operators are as with their first candidates, by share."""
        return {share: self.sums[0][1][share] / secs for share, secs in self.sums[-1][1].items()} if self.sums else {}


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the end of a job and of what its follower does afterwards."""

    secs: float
    is_least: bool
    """whether it is only a lower bound, because no earlier job says how long the next phases take"""


def time_left(
    state: JobState, spent_s: Mapping[str, float], search_s: float | None, least_s: Mapping[str, float], pace: Pace
) -> TimeLeft | None:
    """The time left of a job in `state`, which spent `spent_s` in each state so far.

    The search takes `search_s` more; None = not known. Other states take as long as in the past job, and without one at
    least `least_s`. None if nothing is known, or the job has ended.
    """
    if not state.open or (search_s is None and not pace.past_s):
        return None
    left_s = pace.afterwards_s
    for each in PHASES[PHASES.index(state) :]:
        if each is state and each is JobState.TUNING and search_s is not None:
            left_s += search_s
        else:
            expected_s = pace.past_s.get(each.value, least_s.get(each.value, 0.0))
            left_s += max(expected_s - spent_s.get(each.value, 0.0), 0.0) if each is state else expected_s
    return TimeLeft(left_s, is_least=not pace.past_s)
