"""The part `vs_stock`: `benchmarks.vs_stock` with all of the GPU and one measurer, then with measurers on quarters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.command import python
from benchmarks.gpu.noise import QUARTER
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.support.trajectory import Trial, final_latency, latencies
from benchmarks.vs_stock import LATENCY_BAR, RATE_BAR, TIME_BAR
from fractune.local.noise_file import NOISE_FILE

_MODEL = "squeezenet"
_SHARES = ("full", QUARTER)
_ROUND, _MOST_TRIALS = 32, 384
_SECONDS_A_TRIAL = 3.5
"""of one share's time, as planned: both sides tune, and their incumbents are measured again"""


def run(given: Slice) -> Finding:
    trials = trials_for(given.budget_s / len(_SHARES))
    results: dict[str, Any] = {}
    faults = []
    for number, share in enumerate(_SHARES):
        out = given.out / f"vs_stock_{share.replace(':', '-')}.json"
        out.unlink(missing_ok=True)
        options = ["--models", _MODEL, "--share", share, "--trials", str(trials), "--round", str(_ROUND)]
        options += ["--tasks", "4", "--pairs", "1", "--patience", "1", "--out", str(out)]
        options += ["--advice", str(given.advice)] if (given.advice / NOISE_FILE).exists() else []
        seconds = given.left_s / (len(_SHARES) - number)
        try:
            python(given, "-m", "benchmarks.vs_stock", *options, seconds=seconds).check("benchmarks.vs_stock")
            results[share] = json.loads(out.read_text(encoding="utf-8"))["models"][_MODEL]
        except PartFailed as error:
            faults.append(f"{share}: {error}")
    for share, found in results.items():
        _draw(found["pairs"][0], share, given)
    line = "; ".join(line_of(share, found) for share, found in results.items())
    bars = {"time_to_quality": TIME_BAR, "rate": RATE_BAR, "latency": LATENCY_BAR}
    data = {"trials": trials, "bars": bars, "results": results}
    return Finding(f"{line} ({trials} trials a side)" if line else "", data, tuple(faults))


def trials_for(seconds: float) -> int:
    """Of each side at one share, in whole rounds."""
    rounds = int(seconds / _SECONDS_A_TRIAL) // _ROUND
    return min(_MOST_TRIALS, max(1, rounds) * _ROUND)


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
