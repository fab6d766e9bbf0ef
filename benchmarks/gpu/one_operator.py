"""The part `operator`: one operator tuned at all of the GPU, at a green context and at a percentage of MPS, end to end.

From a model's file to a bundle with NumPy's output, share by share; with what a launch costs there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.gpu.command import fractune, python
from benchmarks.gpu.launch_floor import NEAR_FLOOR
from benchmarks.gpu.part import Finding, PartFailed, Slice
from benchmarks.gpu.products import TOLERANCE, write_product
from benchmarks.gpu.quarter import MPS_QUARTER, green_of, refusal_of

_SEARCH = 0.4
"""of a share's time; the rest is for what begins and ends it"""
_MOST_TRIALS = 256
_SIZE = 2048
"""of the matrices: 17 GFLOP, far above what a launch costs"""
_FLOOR_S, _CHECK_S = 60.0, 60.0
"""longest times of the empty kernel's and of the output's process"""


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
    places = ["--state", str(folder / "state"), "--out", str(folder)]
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
        "launch_floor_s": floor_s(given, share),
        "max_error": checked.events[-1]["max_error"],
    }


def floor_s(given: Slice, share: str) -> float | None:
    """Of an empty kernel there; None for a share of the CPU, which launches nothing. Raises PartFailed."""
    if share.startswith("cpu:"):
        return None
    out = given.private / "launch_floor.json"
    command = ("-m", "benchmarks.gpu.launch_floor", "--share", share, "--out", str(out))
    python(given, *command, seconds=_FLOOR_S).check("timing an empty kernel")
    return float(json.loads(out.read_text(encoding="utf-8"))["launch_floor_s"])


def is_wrong(each: Mapping[str, Any]) -> bool:
    return not each["max_error"] <= TOLERANCE


def line_of(share: str, each: Mapping[str, Any]) -> str:
    floor = each["launch_floor_s"]
    near = f", BELOW {NEAR_FLOOR:g} launches" if floor and each["operator_s"] < NEAR_FLOOR * floor else ""
    floor_text = f", launch floor {floor * 1e6:.1f} us{near}" if floor else ""
    return (
        f"{share}: model {each['untuned_s'] * 1e6:.0f} us untuned, {each['tuned_s'] * 1e6:.0f} us tuned, operator "
        f"{each['operator_s'] * 1e6:.0f} us by {sum(each['trials'].values())} "
        f"trials, error {each['max_error']:.1e}{floor_text}"
    )
