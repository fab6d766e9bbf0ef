"""The part `noise`: `fractune noise` with 1, 2 and 4 measurers at a quarter of the GPU, and with one on all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.command import fractune
from benchmarks.gpu.part import Finding, PartFailed, Slice
from fractune_core.analysis.noise import FEWEST_CANDIDATES, REGRET_ALLOWED, TAU_WANTED

QUARTER, CROWD = "mps:25", 4
RATE_BAR = 3.0
"""measurements a second of the crowd over those of one measurer at the same share"""
_RUNS = {QUARTER: "1,2,4", "full": "1"}
_PORTIONS = {QUARTER: 0.75, "full": 0.25}
"""of the time"""
_CANDIDATES, _SECONDS_EACH = 24, 12.0
"""candidates when there is time for them, and the seconds that one takes in all settings, as planned"""


def run(given: Slice) -> Finding:
    reports: dict[str, Any] = {}
    faults = []
    for share, measurers in _RUNS.items():
        seconds = given.budget_s * _PORTIONS[share]
        candidates = min(_CANDIDATES, max(FEWEST_CANDIDATES, int(seconds / _SECONDS_EACH)))
        options = ["--share", share, "--measurers", measurers, "--candidates", str(candidates)]
        options += ["--state", str(given.advice), "--picture", str(given.out / f"noise_{share.replace(':', '-')}.svg")]
        try:
            reports[share] = fractune(given, "noise", *options)[-1]
        except PartFailed as error:
            faults.append(f"{share}: {error}")
    lines = [line_of(reports[QUARTER])] if QUARTER in reports else []
    if QUARTER in reports and CROWD not in [each["measurers"] for each in reports[QUARTER]["settings"]]:
        faults.append(f"{CROWD} measurers were not timed")
    lines += [f"full, alone: {_spread(reports['full'])}"] if "full" in reports else []
    bars = {"rate": RATE_BAR, "tau": TAU_WANTED, "regret": REGRET_ALLOWED}
    return Finding("; ".join(lines), {"bars": bars, "reports": reports}, tuple(faults))


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
        f"{CROWD} measurers at {QUARTER} make {rate:.2f}x the measurements/s of one (bar {RATE_BAR:g}), tau {tau} "
        f"(bar {TAU_WANTED:g}), top-1 regret {regret} (bar {REGRET_ALLOWED:g}); "
        f"advice: {report['advice']['measurers']} at the same time"
    )


def _spread(report: Mapping[str, Any]) -> str:
    reference = report["settings"][0]
    return f"A/A p90 {reference['spread_p90']:.1%}" if reference["spread_p90"] is not None else "no spread"
