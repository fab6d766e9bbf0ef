"""The part `faults`: a storm of faults (`benchmarks.gpu.storm`) over four measurers, each on a quarter of the GPU.

Without MPS the quarters are green contexts, and a fault stays with its process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.command import python
from benchmarks.gpu.part import Finding, Slice
from benchmarks.gpu.quarter import quarter_of

_CANDIDATES = ((400.0, 120), (0.0, 60))
"""how many, from so many seconds on; a candidate that hangs takes more than a minute: it is given its time twice"""


def run(given: Slice) -> Finding:
    count = next(candidates for seconds, candidates in _CANDIDATES if given.budget_s >= seconds)
    out = given.private / "storm.json"
    quarter = quarter_of(given.gpu)
    options = ["--candidates", str(count), "--share", quarter.share, "--out", str(out)]
    ended = python(given, "-m", "benchmarks.gpu.storm", *options)
    ended.check("the storm")
    report = {**json.loads(out.read_text(encoding="utf-8")), "last_words": ended.last_words}
    return Finding(line_of(report["verdict"]) + quarter.note, report, tuple(report["verdict"]["wrong"]))


def line_of(verdict: Mapping[str, Any]) -> str:
    accounted = verdict["accounted"] / verdict["candidates"]
    return (
        f"{accounted:.0%} of {verdict['candidates']} candidates accounted for (bar 100%), "
        f"{verdict['guilty_named']} of {verdict['guilty']} guilty ones named, "
        f"{verdict['innocent_blamed']} of the others blamed"
    )
