"""The part `operator`: one operator tuned at all of the GPU, at a green context and at a percentage of MPS, end to end.

From a model's file to a bundle with NumPy's output, share by share; with what a launch costs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.gpu.command import fractune, python
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.gpu.products import TOLERANCE, write_product
from benchmarks.gpu.quarter import MPS_QUARTER, green_of, refusal_of

_SEARCH = 0.4
"""of a share's time; the rest is for what begins and ends it"""
_MOST_TRIALS = 256
_SIZE = 2048
"""of the matrices: 17 GFLOP, far above what a launch costs"""
_CHECK_S = 60.0
"""longest time of the output's process"""


def run(given: Slice) -> Finding:
    found: dict[str, Any] = {}
    faults = []
    skipped = {}
    shares = ("full", green_of(given.gpu, 25), MPS_QUARTER)
    for share in shares:
        refusal = refusal_of(share)
        if refusal:
            skipped[share] = refusal
            continue
        try:
            found[share] = given.once(share, partial(tuned_at, given, share, given.budget_s / len(shares)))
        except PartFailed as error:
            faults.append(f"{share}: {error}")
    faults += [
        f"{share}: its output is wrong by {each['max_error']:.1e}" for share, each in found.items() if is_wrong(each)
    ]
    faults += [] if found else ["no share could be had"]
    lines = [line_of(share, each) for share, each in found.items()]
    lines += [f"skipped: {share} ({why})" for share, why in skipped.items()]
    return Finding("; ".join(lines), {"shares": found, "skipped": skipped}, tuple(faults))


def tuned_at(given: Slice, share: str, seconds: float) -> dict[str, Any]:
    """The operator's times at the share, its output's error, and the floor. Raises PartFailed."""
    folder = given.private / f"operator-{share.replace(':', '-')}"
    folder.mkdir(exist_ok=True)
    model = write_product(folder / "product.onnx", _SIZE)
    budget = ["--minutes", f"{seconds * _SEARCH / 60:.2f}", "--trials", str(_MOST_TRIALS)]
    places = ["--state", str(folder / "state"), "--out-dir", str(folder)]
    tuned = fractune(given, "tune", str(model), "--shares", share, *budget, *places)[-1]
    checked = python(given, "-m", "benchmarks.gpu.products", "check", tuned["bundle"], share, seconds=_CHECK_S)
    if not checked.events:
        checked.check("running the bundle")
    (times,) = tuned["shares"]
    return {
        **{name: tuned[name] for name in ("trials", "trials_per_s", "failures", "wall_s", "phases_s", "busy_s")},
        "untuned_s": times["untuned_s"],
        "tuned_s": times["tuned_s"],
        "operator_s": max(each["best_s"][share] for each in tuned["operators"]),
        "launch_s": times["launch_s"],
        "launch_bound": any(each["launch_bound"][share] for each in tuned["operators"]),
        "max_error": checked.events[-1]["max_error"],
    }


def is_wrong(each: Mapping[str, Any]) -> bool:
    return not each["max_error"] <= TOLERANCE


def line_of(share: str, each: Mapping[str, Any]) -> str:
    near = ", LAUNCH-BOUND" if each["launch_bound"] else ""
    floor_text = f", launch floor {each['launch_s'] * 1e6:.1f} us{near}" if each["launch_s"] else ""
    return (
        f"{share}: model {each['untuned_s'] * 1e6:.0f} us untuned, {each['tuned_s'] * 1e6:.0f} us tuned, operator "
        f"{each['operator_s'] * 1e6:.0f} us by {sum(each['trials'].values())} "
        f"trials, error {each['max_error']:.1e}{floor_text}"
    )
