"""A goal instead of a number of trials: a peer to beat at every share, and the distance to it."""

import math
import socket
import statistics
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from fractune.sessions.progress import GoalNews
from fractune.text.text import disturbed_notes, percent_text, span_text, time_text
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.analysis.slowdown_ci import Estimate, Slowdown, slowdown
from fractune_core.served import kept_part

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
    others_cores: float = field(default=0.0, kw_only=True)
    """cores of the share that other programs had meanwhile, on average"""
    cores: int = field(default=1, kw_only=True)
    """of the share"""

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
        """The ratio as a loss: -0.1 = ours takes a tenth less. Its interval allows for what disturbed the times."""
        kept = kept_part(self.others_cores, self.cores)
        return slowdown(self.our_secs, self.peer_secs, interleaved=True).widened(kept, kept)

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
    unproved: str = ""
    """what the outputs are if their agreement says nothing"""


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


def goal_line(goal: Goal) -> str:
    """`goal onnxruntime 1.31.1: cpu:1 9.10 ms, cpu:2 5.90 ms`: the goal."""
    times = ", ".join(f"{share} {time_text(secs)}" for share, secs in goal.peer_s.items())
    margin = f", to be beaten by {percent_text(goal.min_gain)}" if goal.min_gain else ""
    return f"goal  {goal.peer} {goal.version}: {times}{margin}"


def goal_news(goal: Goal) -> GoalNews:
    """The goal, then the result of each step."""
    return GoalNews((goal_line(goal), *map(step_line, goal.steps)), goal_json(goal))


def step_line(step: GoalStep) -> str:
    """`116 trials, 1 min 20 s, ours / theirs: cpu:1 1.42 (1.40 .. 1.45)`: the result of a step."""
    ratios = ", ".join(f"{timing.share} {_ratio_text(timing)}" for timing in step.timings)
    return f"{step.trials} trials, {span_text(step.tuning_s)}, ours / theirs: {ratios}"


def verdict_line(goal: Goal) -> str:
    """The end in one sentence."""
    verdict = "is beaten" if goal.beaten else "is not beaten at every share"
    why = "" if goal.beaten or goal.end is None else f": {goal.end.value}"
    step = goal.steps[-1]
    trials = f"{step.trials} trial{'' if step.trials == 1 else 's'}"
    return f"goal: {goal.peer} {goal.version} {verdict}{why}, after {trials} and {span_text(step.tuning_s)} of tuning"


def goal_notes(goal: Goal) -> list[str]:
    """What to know of the last step: disturbed times, a quantized model beside an exact session, differing outputs."""
    timings = goal.steps[-1].timings
    found = (make(goal, timing) for timing in timings for make in (_exact_note, _difference_note))
    return [*disturbed_notes(timings), *(note for note in found if note is not None)]


def _exact_note(goal: Goal, timing: PeerTiming) -> str | None:
    """For a quantized model."""
    if timing.exact is None:
        return None
    return (
        f"note: at {timing.share} {goal.peer} with exact products takes {time_text(timing.exact.peer_s)}, ours / "
        f"theirs {_ratio_text(timing.exact)}, paced {_ratio_text(timing.exact.paced)}"
    )


def _difference_note(goal: Goal, timing: PeerTiming) -> str | None:
    if timing.outputs_agree and not timing.unproved:
        return None
    found = (
        f"are {timing.unproved}, so that their agreement with {goal.peer}'s says nothing"
        if timing.outputs_agree
        else f"differ from {goal.peer}'s by {timing.max_rel_difference:.1e} of the largest"
    )
    return (
        f"note: at {timing.share} the outputs {found}, on random inputs: compare on yours by 'fractune run BUNDLE "
        f"--inputs FILE.npz --compare {goal.peer} --model MODEL'"
    )


def goal_json(goal: Goal) -> dict[str, Any]:
    """Times in seconds, ratios ours over theirs; `end` is null while it goes on."""
    timings = goal.steps[-1].timings if goal.steps else ()
    return {
        "peer": goal.peer,
        "version": goal.version,
        "by": goal.min_gain,
        "peer_s": dict(goal.peer_s),
        "beaten": goal.beaten,
        "end": None if goal.end is None else goal.end.name.lower(),
        "trials": goal.steps[-1].trials if goal.steps else 0,
        "tuning_s": goal.steps[-1].tuning_s if goal.steps else 0.0,
        "shares": [_share_json(goal, timing) for timing in timings],
        "steps": [
            {
                "tuning_s": step.tuning_s,
                "trials": step.trials,
                "shares": {timing.share: _ratio_json(timing) for timing in step.timings},
            }
            for step in goal.steps
        ],
    }


def _share_json(goal: Goal, timing: PeerTiming) -> dict[str, Any]:
    return {
        "share": timing.share,
        "variant": timing.variant,
        **timing_json(timing),
        "beaten": timing.beats(goal.min_gain),
        "parity_s": goal.parity_s(timing.share),
    }


def timing_json(timing: PeerTiming) -> dict[str, Any]:
    """All repeats, medians and ratios, in a loop and `paced`, beside an `exact` session too, and how far the outputs
    agree.
    """
    return {
        **_both_json(timing),
        "exact": None if timing.exact is None else _both_json(timing.exact),
        "max_rel_difference": timing.max_rel_difference,
        "outputs_agree": timing.outputs_agree,
        "unproved": timing.unproved,
        "others_cores": timing.others_cores,
    }


def _both_json(timed: LoopAndPaced) -> dict[str, Any]:
    return {**_repeats_json(timed), "paced": _repeats_json(timed.paced)}


def _repeats_json(timed: SideBySide) -> dict[str, Any]:
    return {**_ratio_json(timed), "our_run_secs": list(timed.our_secs), "peer_run_secs": list(timed.peer_secs)}


def _ratio_json(timed: SideBySide) -> dict[str, float | None]:
    """Both medians in seconds, and the ratio with its 95 % interval, None if not known."""
    low, high = (None if math.isnan(edge) else edge for edge in timed.interval)
    return {"our_s": timed.our_s, "peer_s": timed.peer_s, "ratio": timed.ratio, "ratio_low": low, "ratio_high": high}


def _ratio_text(timed: SideBySide) -> str:
    low, high = timed.interval
    return f"{timed.ratio:.2f} ({low:.2f} .. {high:.2f})"


def step_times(goal: Goal, model_sha256: str, inputs: Mapping[str, list[int]]) -> list[RuntimeTime]:
    """Those beside the bundle of the last step, one for each share, each under a name of its own."""
    return [
        RuntimeTime(
            time_id=uuid.uuid4().hex,
            model=model_sha256,
            inputs=dict(inputs),
            share=each.share,
            runtime=goal.peer,
            version=goal.version,
            loop_s=each.peer_s,
            paced_s=each.paced.peer_s,
            bundle_loop_s=each.our_s,
            bundle_paced_s=each.paced.our_s,
            loop_ratio=_ratio(each),
            paced_ratio=_ratio(each.paced),
            host=socket.gethostname(),
            measured_at=time.time(),
            others_cores=each.others_cores,
        )
        for each in goal.steps[-1].timings
    ]


def _ratio(timed: SideBySide) -> Estimate:
    return Estimate(timed.ratio, *timed.interval)
