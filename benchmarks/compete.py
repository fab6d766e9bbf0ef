"""A loaded bundle beside the best of its own code, ONNX Runtime and OpenVINO.

Each model of the zoo is tuned without a search (`--trials N` searches), and competes with the runtimes that
are installed. Then the bundle is loaded, and timed beside its own code and beside each runtime that could compete, by
new repeats, confined to the share and interleaved. The promise is that a loaded bundle is never slower than the best by
more than 3 %, beyond the interval: for paced requests, which decide at the goal `latency`.

Results are written after every model.

Usage: python -m benchmarks.compete [--quick] [--out FILE] [--models A,B] [--shares cpu:1,cpu:2] [--trials N]
[--repeats 15] [--inexact]
"""

import argparse
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fractune
from benchmarks.support.loaded_child import LOADED
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from benchmarks.support.processes import import_path
from benchmarks.support.zoo import zoo
from fractune.errors import FractuneError
from fractune.local.timing_process import timing_process
from fractune.text.text import time_text
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.files.compared import OURS, Compared

ALLOWED = 1.03
_CHILD = "benchmarks.support.loaded_child"


def main() -> None:
    args = _parse()
    rows: list[dict[str, Any]] = []
    for name in args.models.split(","):
        rows.append(_row(find_model(name), args))
        _print(rows[-1])
        write_result("compete", args, {"trials": args.trials, "repeats": args.repeats, "rows": rows})
    print(verdict(rows))


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="", help="(default: the zoo)")
    parser.add_argument("--shares", default="cpu:1,cpu:2", help="(default: %(default)s)")
    parser.add_argument("--trials", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--inexact", action="store_true", help="let runtimes round as they do by default")
    args = parser.parse_args()
    args.models = args.models or ("squeezenet" if args.quick else ",".join(zoo()))
    args.repeats = 6 if args.quick else args.repeats
    return args


def _row(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        out = Path(folder) / "model.fractune"
        options: dict[str, Any] = {"inputs": model.inputs, "state": Path(folder) / "state", "progress": False}
        try:
            fractune.tune(model.path, args.shares, trials=args.trials, out=out, compete="none", **options)
            found = fractune.compete(out, model.path, inexact=args.inexact, progress=False)
            shares = {
                each.share: timed_as_loaded(out, model.path, each.share, each.compared, args.repeats)
                for each in found.contests
            }
        except FractuneError as error:
            return {"model": model.name, "failed": str(error)}
    return {"model": model.name, "shares": shares}


def timed_as_loaded(bundle: Path, model: Path, share: str, compared: Compared, repeats: int) -> dict[str, Any]:
    """Times of the loaded bundle, its own code and the runtimes that competed, and its ratios to the best."""
    runtimes = [name for name in compared.times if name != OURS]
    with timing_process(share, {"PYTHONPATH": import_path()}, module=_CHILD) as call:
        found = call("compare", bundle=str(bundle), onnx=str(model), runtimes=runtimes, repeats=repeats)
    return {
        **found,
        "competed": compared.to_json(),
        "ratios": {kind: _over_best(found[kind]) for kind in ("paced", "loop")},
    }


def _over_best(secs: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The loaded bundle's time over that of the fastest other, with the interval."""
    others = {name: statistics.median(each) for name, each in secs.items() if name != LOADED}
    if not others:
        return {"best": LOADED, "ratio": [1.0, 1.0, 1.0]}
    best = min(others, key=lambda name: others[name])
    lost = slowdown(secs[LOADED], secs[best], interleaved=True)
    return {"best": best, "ratio": [1 + lost.median, 1 + lost.low, 1 + lost.high]}


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line: how often each served, and where the loaded bundle is slower than allowed."""
    cases = [(row["model"], share, each) for row in rows for share, each in row.get("shares", {}).items()]
    serves = Counter(_who(each) for _, _, each in cases)
    ratios = [each["ratios"]["paced"]["ratio"] for _, _, each in cases if each["ratios"]["paced"]["best"] != LOADED]
    slower = [
        f"{name} at {share} ({each['ratios']['paced']['ratio'][0]:.2f} of {each['ratios']['paced']['best']})"
        for name, share, each in cases
        if each["ratios"]["paced"]["ratio"][1] > ALLOWED
    ]
    mean = math.exp(statistics.fmean(math.log(ratio[0]) for ratio in ratios)) if ratios else math.nan
    shown = ", ".join(f"{name} {count}" for name, count in serves.most_common())
    failed = sum("failed" in row for row in rows)
    without = len(cases) - len(ratios)
    return (
        f"compete: a loaded bundle takes {mean:.2f} of the best other's time for paced requests (geometric mean of "
        f"{len(ratios)} cases, {without} without a contender; {failed} models failed); served by {shown or 'none'}; "
        f"slower than 3 % beyond the interval: {', '.join(slower) or 'none'}"
    )


def _who(each: Mapping[str, Any]) -> str:
    return str(each["choice"]) if each["choice"] in each["competed"]["times"] else OURS


def _print(row: Mapping[str, Any]) -> None:
    if "failed" in row:
        print(f"{row['model']}: {row['failed']}", flush=True)
        return
    for share, each in row["shares"].items():
        times = ", ".join(f"{name} {time_text(secs)}" for name, secs in each["median_s"].items())
        refused = "".join(f"; {name} refused: {why}" for name, why in each["competed"]["refused"].items())
        paced, loop = (each["ratios"][kind] for kind in ("paced", "loop"))
        print(
            f"{row['model']:<18} {share}  {_who(each):<12} paced {_text(paced)}, loop {_text(loop)}; {times}{refused}",
            flush=True,
        )


def _text(found: Mapping[str, Any]) -> str:
    middle, low, high = found["ratio"]
    return f"{middle:.2f} ({low:.2f} .. {high:.2f}) of {found['best']}"


if __name__ == "__main__":
    main()
