"""The part `noise`: `fractune noise` with 1, 2 and 4 measurers at a quarter of the GPU, and with one on all of it.

Without MPS the quarters are green contexts; their processes alternate on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu.command import fractune
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.gpu.quarter import quarter_of
from fractune_core.analysis.noise import FEWEST_CANDIDATES, REGRET_ALLOWED, TAU_WANTED

CROWD = 4
RATE_BAR = 3.0
"""measurements a second of the crowd over those of one measurer at the same share"""
_CROWDS, _ALONE = "1,2,4", "1"
_PORTIONS = {_CROWDS: 0.75, _ALONE: 0.25}
"""of the time, by numbers of measurers"""
_CANDIDATES, _SECONDS_EACH = 24, 12.0
"""candidates when there is time for them, and the seconds that one takes in all settings, as planned"""


def run(given: Slice) -> Finding:
    reports: dict[str, Any] = {}
    faults = []
    quarter = quarter_of(given.gpu)
    for share, measurers in ((quarter.share, _CROWDS), ("full", _ALONE)):
        seconds = given.budget_s * _PORTIONS[measurers]
        candidates = min(_CANDIDATES, max(FEWEST_CANDIDATES, int(seconds / _SECONDS_EACH)))
        options = ["--share", share, "--measurers", measurers, "--candidates", str(candidates)]
        options += ["--state", str(given.advice), "--picture", str(given.out / f"noise_{share.replace(':', '-')}.svg")]
        try:
            reports[share] = given.once(share, partial(_report, given, options))
        except PartFailed as error:
            faults.append(f"{share}: {error}")
    crowds = reports.get(quarter.share)
    lines = [line_of(crowds) + quarter.note] if crowds else []
    if crowds and not quarter.refusal and CROWD not in [each["measurers"] for each in crowds["settings"]]:
        faults.append(f"{CROWD} measurers were not timed")
    lines += [f"full, alone: {_spread(reports['full'])}"] if "full" in reports else []
    bars = {"rate": RATE_BAR, "tau": TAU_WANTED, "regret": REGRET_ALLOWED}
    return Finding("; ".join(lines), {"bars": bars, "reports": reports}, tuple(faults))


def _report(given: Slice, options: Sequence[str]) -> dict[str, Any]:
    return fractune(given, "noise", *options)[-1]


def line_of(report: Mapping[str, Any]) -> str:
    """The crowd against one, as trials are timed and without builds beside."""
    trials = {
        each["measurers"]: each for each in report["settings"] if each["policy"] == "trial" and not each["builds"]
    }
    if CROWD not in trials:
        return "; ".join(report["notes"])
    crowd = trials[CROWD]
    rate = trials[1]["secs_per_candidate"] / crowd["secs_per_candidate"]
    tau, regret = ("none" if value is None else f"{value:.3f}" for value in (crowd["tau"], crowd["regret"]))
    return (
        f"{CROWD} measurers at {report['share']} make {rate:.2f}x the measurements/s of one (bar {RATE_BAR:g}), "
        f"tau {tau} (bar {TAU_WANTED:g}), top-1 regret {regret} (bar {REGRET_ALLOWED:g}); "
        f"advice: {report['advice']['measurers']} at the same time"
    )


def _spread(report: Mapping[str, Any]) -> str:
    reference = report["settings"][0]
    return f"A/A p90 {reference['spread_p90']:.1%}" if reference["spread_p90"] is not None else "no spread"
