"""The part `vs_stock`: `benchmarks.vs_stock` with all of the GPU, one measurer and the same cores for both sides.

Few operators and many rounds: what a search has learnt shows after some rounds only, and before that both sides draw.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.command import python
from benchmarks.gpu.part import Finding, Slice
from benchmarks.support.trajectory import Trial, final_latency, latencies
from benchmarks.vs_stock import LATENCY_BAR, RATE_BAR, TIME_BAR

SHARE = "full"
_MODEL = "squeezenet"
_ROUND, _MOST_TRIALS, _MOST_OPERATORS = 16, 384, 2
ROUNDS_TO_DECIDE = 5
"""of each operator; with fewer the ratios say how fast the sides start, and not how well they search"""
_SECONDS_A_TRIAL = 3.5
"""as planned: both sides tune, and their incumbents are measured again"""


def run(given: Slice) -> Finding:
    trials = trials_for(given.budget_s)
    operators = operators_for(trials)
    found = given.once(f"{trials} trials", lambda: _pair(given, trials, operators))
    _draw(found["pairs"][0], SHARE, given)
    rounds = trials // _ROUND // operators
    decided = rounds >= ROUNDS_TO_DECIDE
    doubt = "" if decided else f"NOT DECIDED, {rounds} rounds of each operator are below {ROUNDS_TO_DECIDE}: "
    bars = {"time_to_quality": TIME_BAR, "rate": RATE_BAR, "latency": LATENCY_BAR}
    data = {"trials": trials, "rounds": rounds, "decided": decided, "bars": bars, "results": {SHARE: found}}
    return Finding(f"{doubt}{line_of(SHARE, found)} ({trials} trials a side, {operators} operator(s))", data)


def _pair(given: Slice, trials: int, operators: int) -> dict[str, Any]:
    """The report of `benchmarks.vs_stock` on the model. Raises PartFailed."""
    out = given.private / "vs_stock.json"
    options = ["--models", _MODEL, "--share", SHARE, "--trials", str(trials), "--round", str(_ROUND)]
    options += ["--tasks", str(operators), "--pairs", "1", "--patience", "1", "--out", str(out)]
    python(given, "-m", "benchmarks.vs_stock", *options).check("benchmarks.vs_stock")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["models"][_MODEL]
    return found


def trials_for(seconds: float) -> int:
    """Of each side, in whole rounds."""
    rounds = int(seconds / _SECONDS_A_TRIAL) // _ROUND
    return min(_MOST_TRIALS, max(1, rounds) * _ROUND)


def operators_for(trials: int) -> int:
    """As many as can have enough rounds to decide."""
    return max(1, min(_MOST_OPERATORS, trials // _ROUND // ROUNDS_TO_DECIDE))


def line_of(share: str, found: Mapping[str, Any]) -> str:
    """Ours over stock's, of one pair."""
    (pair,) = found["pairs"]
    ratios = pair["ratios"]
    rate, quality, latency = (_text(ratios[name]) for name in ("rate", "time_to_quality", "latency"))
    return (
        f"{share}, {pair['measurers_of_ours']} measurer(s), over stock: trials/s {rate}x (bar {RATE_BAR:g}), "
        f"time to quality {quality} (bar {TIME_BAR:g}), final latency {latency} (bar {LATENCY_BAR:g})"
    )


def _text(ratio: float | None) -> str:
    return "never" if ratio is None else f"{ratio:.2f}"


def _draw(pair: Mapping[str, Any], share: str, given: Slice) -> None:
    """Each side's latency over the time since its command began, by its own trials."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for side, name, colour in (("stock", "stock TVM", "#D55E00"), ("ours", "fractune", "#0072B2")):
        curve = _curve(pair[side]["history"])
        if curve:
            axes.step([at_s for at_s, _ in curve], [held_s * 1e3 for _, held_s in curve], color=colour, label=name)
    axes.set_xlabel("seconds since the command began")
    axes.set_ylabel("sum of the operators' fastest trials, ms")
    axes.set_title(f"{_MODEL} at {share}")
    if axes.get_legend_handles_labels()[0]:
        axes.set_yscale("log")
        axes.legend()
    figure.savefig(given.out / f"vs_stock_{share.replace(':', '-')}.svg")


def _curve(history: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    trials = [Trial(at_s, operator, math.inf if secs is None else secs) for at_s, operator, secs in history]
    weights = dict.fromkeys((trial.operator for trial in trials), 1)
    return latencies(trials, weights) if math.isfinite(final_latency(trials, weights)) else []
