"""Limits that `fractune fit` finds, tried under the real quota: do they keep the p99, and does 0.8 of them break it?

Each trial fits a limit anew and serves the model under it, as `fractune fit --verify` does. Then it serves the model
under 0.8 of the limit, with the same arrivals. The goal of a model follows from its time with one thread: that thread
would be busy for 30 % of the time, and the p99 is five times as long. Models run as bundles that are made without a
search (`fractune tune --trials 0`), or in ONNX Runtime. Needs root or a delegated cgroup.

Usage: python -m benchmarks.fit_trials [--quick] [--out FILE] [--models A,B] [--runtime NAME] [--trials N]
    [--bundles FOLDER]
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import fractune
from benchmarks.support import ours
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import find_model
from fractune.errors import FractuneError
from fractune.features.fit.measuring import FRACTUNE, ONNX_RUNTIME, Verified, check_limits, measure, verify
from fractune_core.analysis.limit_fitting import Alternative
from fractune_core.served import LOAD

KEPT_BAR, BROKEN_BAR = 0.9, 0.7
"""parts of the trials: with the limit the p99 is kept, with the smaller one it is not"""
SMALLER = 0.8
MODELS = "squeezenet,shufflenet,transformer"
_P99_OF_MEAN = 5
_STEP = "25m"


@dataclass(frozen=True)
class _Case:
    name: str
    path: Path
    inputs: dict[str, list[int]]
    rate_per_s: float
    p99_s: float


def main() -> None:
    args = _parse()
    try:
        check_limits()
    except FractuneError as error:
        raise SystemExit(f"fit_trials: {error}") from error
    trials = []
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        for name in args.models.split(","):
            case = _case(name, args.runtime, args.bundles or Path(folder))
            print(
                f"{name} in {args.runtime}: {case.rate_per_s:g}/s with p99 at most {1e3 * case.p99_s:g} ms", flush=True
            )
            trials += [_trial(case, seed) for seed in range(args.trials)]
    kept, broken = (sum(each) / len(trials) for each in zip(*map(_outcome, trials), strict=True))
    bars = {"kept": KEPT_BAR, "broken": BROKEN_BAR}
    data = {"runtime": args.runtime, "bars": bars, "kept": kept, "broken": broken, "trials": trials}
    write_result("fit_trials", args, data)
    print(
        f"fit_trials: the limit kept the p99 in {kept:.0%} of {len(trials)} trials (bar {KEPT_BAR:.0%}), "
        f"{SMALLER:g} of it broke the p99 in {broken:.0%} (bar {BROKEN_BAR:.0%})"
    )


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--models", help=f"(default: {MODELS})")
    parser.add_argument("--runtime", choices=[FRACTUNE, ONNX_RUNTIME], default=FRACTUNE)
    parser.add_argument("--trials", type=int, help="of each model (default: 10)")
    parser.add_argument("--bundles", type=Path, help="a folder: bundles NAME/*.fractune there are taken, others made")
    args = parser.parse_args()
    args.models = args.models or ("shufflenet" if args.quick else MODELS)
    args.trials = args.trials or (1 if args.quick else 10)
    return args


def _case(name: str, runtime: str, folder: Path) -> _Case:
    """The model with its goal, rounded to two digits."""
    model = find_model(name)
    path, inputs = (model.path, model.inputs) if runtime == ONNX_RUNTIME else (_bundle(name, folder), {})
    services = measure(path, inputs, lambda _: None).services
    mean_s = services[0].mean_s
    return _Case(name, path, inputs, float(f"{LOAD / mean_s:.2g}"), float(f"{_P99_OF_MEAN * mean_s:.2g}"))


def _bundle(name: str, folder: Path) -> Path:
    """With the first candidate of each operator, at one core and at two."""
    there = sorted((folder / name).glob("*.fractune"))
    if there:
        return there[0]
    print(f"{name}: fractune tune --trials 0 ...", flush=True)
    return ours.tune(find_model(name), "cpu:1,cpu:2", folder / "state", folder / name, ["--trials", "0"]).bundle


def _trial(case: _Case, seed: int) -> dict[str, Any]:
    found = fractune.fit(
        case.path, case.rate_per_s, case.p99_s, share_steps=_STEP, inputs=case.inputs or None, progress=False
    )
    smaller = replace(found.best, limit=replace(found.best.limit, quota_m=round(SMALLER * found.best.limit.quota_m)))
    tried = [
        verify(case.path, found.measured, each, found.goal, case.inputs, lambda _: None, seed)
        for each in (found.best, smaller)
    ]
    _print(seed, (found.best, smaller), tried)
    return {
        "model": case.name,
        "seed": seed,
        "fit": found.to_json(),
        "tried": [
            {"limit_m": each.limit.quota_m, **asdict(result)}
            for each, result in zip((found.best, smaller), tried, strict=True)
        ],
    }


def _outcome(trial: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the limit kept the p99, and whether the smaller one broke it."""
    at_limit, below = trial["tried"]
    return at_limit["held"], not below["held"]


def _print(seed: int, ways: Sequence[Alternative], tried: Sequence[Verified]) -> None:
    texts = [
        f"{way.name:<22} p99 {1e3 * each.p99_s:7.1f} ms ({1e3 * each.predicted_p99_s:7.1f} predicted) "
        f"{'kept' if each.held else 'broken':<6} others {each.other_cores:.1f}"
        for way, each in zip(ways, tried, strict=True)
    ]
    print(f"  {seed:>2}  {'   '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
