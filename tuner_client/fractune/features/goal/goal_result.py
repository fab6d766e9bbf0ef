"""A goal instead of a number of trials: a peer to beat at every share, and the distance to it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from fractune_core.analysis.slowdown_ci import Slowdown, slowdown

_FIRST_TRIALS = 4
"""least candidates for each operator in each search, and their number in the first"""
_GROWTH = 1.5
"""a step ends with this many times the trials of the step before. So the work after each search (validation, compiling,
timing) stays a small part
"""
_EMPTY_STEPS = 2
"""steps in a row without a new trial that end the tuning; one such step may be followed by a new search"""


class GoalEnd(StrEnum):
    """The reason for the end of a tuning with a goal; the values are printed."""

    BEATEN = "it is beaten at every share"
    MINUTES = "the minutes are over"
    TRIALS = "the trials are made"
    EXHAUSTED = "the search finds nothing new"


@dataclass(frozen=True)
class SideBySide:
    """Our inferences and the peer's, timed interleaved."""

    our_secs: tuple[float, ...]
    """seconds of one inference, all repeats"""
    peer_secs: tuple[float, ...]
    """of the peer; its n-th repeat was timed next to our n-th"""

    @property
    def our_s(self) -> float:
        """Our median in seconds."""
        return statistics.median(self.our_secs)

    @property
    def peer_s(self) -> float:
        """The peer's median in seconds."""
        return statistics.median(self.peer_secs)

    @property
    def ratio(self) -> float:
        """Ours over the peer's: 0.9 = ours takes a tenth less."""
        return 1.0 + self.slowdown.median

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the ratio."""
        return 1.0 + self.slowdown.low, 1.0 + self.slowdown.high

    @cached_property
    def slowdown(self) -> Slowdown:
        """The ratio as a loss: -0.1 = ours takes a tenth less."""
        return slowdown(self.our_secs, self.peer_secs, interleaved=True)

    def beats(self, min_gain: float) -> bool:
        """Whether ours is faster than the peer by more than the fraction `min_gain`, beyond the noise."""
        return self.interval[1] < 1.0 - min_gain


@dataclass(frozen=True)
class LoopAndPaced(SideBySide):
    """Both timed in a loop, where one request follows the other, and paced."""

    paced: SideBySide
    """paced: each request comes 20 ms after the answer to the one before"""


@dataclass(frozen=True)
class PeerTiming(LoopAndPaced):
    """The bundle and the peer at one share: interleaved in one process, confined to the share, alone."""

    share: str
    variant: str
    """variant of the bundle that ran"""
    exact: LoopAndPaced | None
    """for a quantized model, the bundle and an exact session of ONNX Runtime, where no sum saturates; else None"""
    max_rel_difference: float
    """largest difference of the outputs over the largest value of that output; to the exact session where there is
    one"""
    outputs_agree: bool
    """whether the difference is only rounding"""


@dataclass(frozen=True)
class GoalStep:
    """A search and its bundle, timed beside the peer."""

    tuning_s: float
    """seconds of tuning from the beginning to this bundle, without timing beside the peer"""
    trials: int
    """new candidates measured until this bundle"""
    timings: tuple[PeerTiming, ...]
    """one for each share"""


@dataclass(frozen=True)
class Goal:
    """A peer to beat at every share, and the steps so far."""

    peer: str
    """`onnxruntime`"""
    version: str
    """of the peer"""
    min_gain: float
    """required gain as a fraction: 0.05 = 5 %"""
    peer_s: Mapping[str, float]
    """seconds of one inference of the peer by share, timed alone before the tuning"""
    steps: tuple[GoalStep, ...] = ()
    """the first one searches nothing"""
    end: GoalEnd | None = None
    """None while it goes on"""

    @property
    def beaten(self) -> bool:
        """Whether the last bundle beats the peer at every share."""
        return bool(self.steps) and all(timing.beats(self.min_gain) for timing in self.steps[-1].timings)

    def parity_s(self, share: str) -> float | None:
        """Seconds of tuning until the bundle was as fast as the peer at `share`; None if it never was."""
        for step in self.steps:
            if any(timing.share == share and timing.ratio <= 1.0 for timing in step.timings):
                return step.tuning_s
        return None


def next_trials(reached: int, operators: int, most: int | None) -> int:
    """Total of trials for the step after one with `reached`; `most` limits it."""
    total = max(reached + _FIRST_TRIALS * operators, round(_GROWTH * reached))
    return total if most is None else min(total, most)


def goal_end(goal: Goal, known: int, most: int | None, empty_steps: int, *, minutes_over: bool) -> GoalEnd | None:
    """The reason to end a tuning after the last step of `goal`; None = it goes on.

    The log holds `known` trials, and may hold `most`. The last `empty_steps` steps found nothing new.
    """
    if goal.beaten:
        return GoalEnd.BEATEN
    if most is not None and known >= most:
        return GoalEnd.TRIALS
    if empty_steps >= _EMPTY_STEPS:
        return GoalEnd.EXHAUSTED
    return GoalEnd.MINUTES if minutes_over else None
