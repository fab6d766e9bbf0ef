"""The value of a log that is not empty: the same model again, and a sibling model.

(a) The same command a second time: new trials and wall seconds. (b) The sibling B is tuned from a fresh state, and in a
state that holds the log of A. Measured are the seconds and trials until the second run holds the final latency of the
first one, by each run's own trials; also until within 2 % of it. The clock starts with the command. The published
schedules of both are measured again, operator by operator,
with nothing else running.

Two families: one network at two resolutions, and two networks of a kind. Usage: python -m benchmarks.warm_start
[--quick] [--out FILE] [--families resolution,zoo] [--trials N] [--share cpu:N] [--only TEXT]
"""

import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.interleaved import median_secs, open_session
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model, operators_of, resized
from benchmarks.support.runs import Run, finite
from fractune_core.records import TuningRecord

SAME_TRIALS_BAR = 0
SAME_WALL_BAR_S = 10.0
SIBLING_BAR = 0.22
NEAR = 1.02
"""a latency within 2 % counts as near"""


@dataclass(frozen=True)
class Settings:
    share: str
    trials: int
    only: str

    @property
    def options(self) -> list[str]:
        return ["--trials", str(self.trials), *(["--only", self.only] if self.only else [])]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--families", default="", help="resolution (one network, two resolutions), zoo, or both")
    parser.add_argument("--trials", type=int, help="candidates of each tuning, over all operators")
    parser.add_argument("--share", default="cpu:2")
    parser.add_argument("--only", help="operators, as `fractune tune --only` takes them")
    args = parser.parse_args()
    trials, only = (16, "conv2d1_,conv2d2_") if args.quick else (256, "")
    settings = Settings(args.share, args.trials or trials, only if args.only is None else args.only)
    names = args.families or ("resolution" if args.quick else "resolution,zoo")
    found: dict[str, dict[str, Any]] = {}
    for name in names.split(","):
        with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
            found[name] = _family(*_members(name, Path(folder)), settings, Path(folder))
        _print_family(name, found[name])
    bars = {"again_trials": SAME_TRIALS_BAR, "again_wall_s": SAME_WALL_BAR_S, "time_ratio": SIBLING_BAR}
    data = {"share": settings.share, "trials": settings.trials, "only": settings.only, "bars": bars}
    write_result("warm_start", args, {**data, "families": found})
    print(_verdict(found))


def _members(family: str, folder: Path) -> tuple[Model, Model]:
    """The model A that the log knows, and its sibling B."""
    if family == "resolution":
        return find_model("squeezenet"), resized(find_model("squeezenet"), 192, folder)
    if family == "zoo":
        return find_model("zfnet512"), find_model("bvlc_alexnet")
    raise SystemExit(f"warm_start: no family '{family}'; there are resolution, zoo")


def _family(known: Model, sibling: Model, settings: Settings, folder: Path) -> dict[str, Any]:
    cold, _ = _tune(sibling, settings, folder / "cold")
    _tune(known, settings, folder / "warm")
    again, again_trials = _tune(known, settings, folder / "warm")
    warm, _ = _tune(sibling, settings, folder / "warm")
    records = {side: ours.records_of(folder / side) for side in ("cold", "warm")}
    runs = {
        "cold": ours.as_run(cold, records["cold"], settings.share),
        "warm": ours.as_run(warm, records["warm"], settings.share),
    }
    goals = {"reached": runs["cold"].latency_s, "near": runs["cold"].latency_s * NEAR}
    reached = {goal: {side: _reach(run, secs) for side, run in runs.items()} for goal, secs in goals.items()}
    return {
        "known": known.name,
        "sibling": sibling.name,
        "again": {"trials": again_trials, "wall_s": again.process.wall_s},
        "goal_s": finite(goals["reached"]),
        **reached,
        "ratios": {
            "time": _ratio(reached["reached"], "secs"),
            "trials": _ratio(reached["reached"], "trials"),
            "time_near": _ratio(reached["near"], "secs"),
            "trials_near": _ratio(reached["near"], "trials"),
            "latency": _measure_again(sibling, records, settings.share),
        },
        "runs": {side: run.to_json() for side, run in runs.items()},
    }


def _tune(model: Model, settings: Settings, state: Path) -> tuple[ours.Tuned, int]:
    """The run, and the number of its new candidates."""
    print(f"{model.name}: fractune tune ...", flush=True)
    tuned = ours.tune(model, settings.share, state, state.parent, settings.options)
    return tuned, int(tuned.result["trials"][settings.share])


def _reach(run: Run, latency_s: float) -> dict[str, float | None]:
    """Seconds since the command began, and new trials, until the run held this latency; None = never."""
    moment = run.moment_of(latency_s)
    if math.isinf(moment):
        return {"secs": None, "trials": None}
    return {"secs": moment - run.process.started, "trials": run.new_until(moment)}


def _ratio(reached: dict[str, dict[str, float | None]], what: str) -> float | None:
    """Warm over cold; None when warm never got there."""
    warm, cold = reached["warm"][what], reached["cold"][what]
    return None if warm is None or not cold else warm / cold


def _measure_again(sibling: Model, records: dict[str, list[TuningRecord]], share: str) -> float | None:
    """Warm over cold: geometric mean over the operators that both publish, timed interleaved."""
    held = {side: ours.winners(found, share) for side, found in records.items()}
    target = records["cold"][0].target
    ratios = []
    session, cores = open_session(share)
    try:
        for operator in operators_of(sibling):
            name = operator.workload_hash
            if all(name in traces for traces in held.values()):
                traces = {side: found[name] for side, found in held.items()}
                times = median_secs(operator, traces, target, session, cores)
                if all(math.isfinite(secs) for secs in times.values()):
                    ratios.append(times["warm"] / times["cold"])
    finally:
        session.stop()
    return statistics.geometric_mean(ratios) if ratios else None


def _print_family(name: str, family: dict[str, Any]) -> None:
    again = family["again"]
    print(f"{name}: {family['known']} again: {again['trials']} new trials, {again['wall_s']:.1f} s")
    print(f"{family['sibling'] + ', until':<40}{'cold':>12}{'warm':>12}{'ratio':>10}")
    ratios = family["ratios"]
    _print_row("the cold run's latency, s", family["reached"], "secs", ratios["time"])
    _print_row("  new trials", family["reached"], "trials", ratios["trials"])
    _print_row("within 2 % of it, s", family["near"], "secs", ratios["time_near"])
    _print_row("  new trials", family["near"], "trials", ratios["trials_near"])
    print(f"{'final latency, measured again: geomean':<64}{_text(ratios['latency'], 3):>10}")


def _print_row(title: str, reached: dict[str, dict[str, float | None]], what: str, ratio: float | None) -> None:
    cold, warm = _text(reached["cold"][what], 1), _text(reached["warm"][what], 1)
    print(f"{title:<40}{cold:>12}{warm:>12}{_text(ratio, 3):>10}")


def _text(value: float | None, digits: int) -> str:
    return "never" if value is None else f"{value:.{digits}f}"


def _verdict(found: dict[str, dict[str, Any]]) -> str:
    def each(values: Sequence[str]) -> str:
        return ", ".join(f"{name} {value}" for name, value in zip(found, values, strict=True))

    again = [f"{family['again']['trials']} in {family['again']['wall_s']:.1f} s" for family in found.values()]
    times = [_text(family["ratios"]["time"], 2) for family in found.values()]
    return (
        f"warm_start: new trials of the same model again: {each(again)} (bar {SAME_TRIALS_BAR} in "
        f"{SAME_WALL_BAR_S:g} s); a sibling's time to the cold run's latency, warm over cold: {each(times)} "
        f"(bar {SIBLING_BAR:g})"
    )


if __name__ == "__main__":
    main()
