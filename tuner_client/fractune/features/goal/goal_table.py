"""A goal and its progress, in lines, as tables and as JSON."""

from __future__ import annotations

import math
from typing import Any

from fractune.features.goal.goal_result import Goal, GoalStep, LoopAndPaced, PeerTiming, SideBySide
from fractune.sessions.progress import GoalNews
from fractune.text.rendering import Column, Table
from fractune.text.text import percent_text, span_text, time_text


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


def goal_table(goal: Goal) -> Table:
    """A row for each share: both times, the ratio with its interval, and the time of parity."""
    columns = (
        *(Column("share"), Column("ours", numbers=True), Column(goal.peer, numbers=True)),
        Column("ours / theirs (95 % interval)", numbers=True, wraps_at=8),
        Column("paced, ours / theirs", numbers=True, wraps_at=8),
        *(
            Column("parity after", numbers=True, dispensable=1),
            Column("largest output difference", numbers=True, dispensable=2),
        ),
        Column("beaten"),
    )
    timings = goal.steps[-1].timings
    return Table(
        title=f"beside {goal.peer} {goal.version}, interleaved, alone, from NumPy to NumPy",
        columns=columns,
        cells=tuple(_cells(goal, timing) for timing in timings),
        rows=tuple(_share_json(goal, timing) for timing in timings),
        notes=tuple(
            note
            for timing in timings
            for note in (_exact_note(goal, timing), _difference_note(goal, timing))
            if note is not None
        ),
    )


def _exact_note(goal: Goal, timing: PeerTiming) -> str | None:
    """For a quantized model."""
    if timing.exact is None:
        return None
    return (
        f"note: at {timing.share} {goal.peer} with exact products takes {time_text(timing.exact.peer_s)}, ours / "
        f"theirs {_ratio_text(timing.exact)}, paced {_ratio_text(timing.exact.paced)}"
    )


def _difference_note(goal: Goal, timing: PeerTiming) -> str | None:
    if timing.outputs_agree:
        return None
    return (
        f"note: at {timing.share} the outputs differ from {goal.peer}'s by {timing.max_rel_difference:.1e} of the "
        "largest, on random inputs: compare on yours by 'fractune run BUNDLE --inputs FILE.npz --compare "
        f"{goal.peer} --model MODEL'"
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
    }


def _both_json(timed: LoopAndPaced) -> dict[str, Any]:
    return {**_repeats_json(timed), "paced": _repeats_json(timed.paced)}


def _repeats_json(timed: SideBySide) -> dict[str, Any]:
    return {**_ratio_json(timed), "our_run_secs": list(timed.our_secs), "peer_run_secs": list(timed.peer_secs)}


def _ratio_json(timed: SideBySide) -> dict[str, float | None]:
    """Both medians in seconds, and the ratio with its 95 % interval, None if not known."""
    low, high = (None if math.isnan(edge) else edge for edge in timed.interval)
    return {
        "our_s": timed.our_s,
        "peer_s": timed.peer_s,
        "ratio": timed.ratio,
        "ratio_low": low,
        "ratio_high": high,
    }


def _cells(goal: Goal, timing: PeerTiming) -> tuple[str, ...]:
    parity_s = goal.parity_s(timing.share)
    return (
        timing.share,
        time_text(timing.our_s),
        time_text(timing.peer_s),
        _ratio_text(timing),
        _ratio_text(timing.paced),
        "-" if parity_s is None else span_text(parity_s),
        f"{timing.max_rel_difference:.1e}",
        "yes" if timing.beats(goal.min_gain) else "no",
    )


def _ratio_text(timed: SideBySide) -> str:
    low, high = timed.interval
    return f"{timed.ratio:.2f} ({low:.2f} .. {high:.2f})"
