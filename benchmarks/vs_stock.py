"""fractune against stock TVM MetaSchedule: the same models, operators, target, trials and size of a round.

Each pair runs one side after the other, in fresh processes from a fresh state; every pair reverses the order. Our side
also checks its winners, compiles the model and times it; its wall and CPU seconds contain that.

Every candidate that a side held as its best at some time is then measured again, interleaved and with nothing else
running. Final latency is stock's best candidate of every operator against our published one, which our own validation
chose. Time to quality is the moment when a side first held the latency (sum of weight x time) that stock ends with, and
the moment of a latency within 2 % of it. The clock starts with the process. Where our side does not get there with as
many trials, its command runs again with as many more, at most twice; the clock runs on from one command to the next.

A case is one operator under one seed. Claims are about the median case, with its exact interval, from twelve cases on.
With fewer cases the last line prints "cannot tell".

On a GPU both sides tune for the same share and target with the same cores. Ours has as many measurers as `fractune
noise` advises (--advice names the state folder with the advice), stock has its single one.

With `--peer our-layouts` stock tunes the operators of the model as we prepare it: then the rest is search. With `--peer
plain` it tunes those that TVM's own pipeline derives from the model: no planned layouts, no implementations of ours.
Each plain operator then corresponds to ours at the same places in the model (`support/counterparts.py`), and each
side's candidates are measured again with their own workload. An operator without a counterpart is left out and listed.
An operator that only changes a layout, as at the model's border, is separate and counted to neither side.

Usage: python -m benchmarks.vs_stock [--quick] [--out FILE] [--peer our-layouts|plain] [--models A,B] [--trials N]
[--round N] [--tasks N] [--pairs N] [--patience N] [--share SHARE] [--target TEXT] [--advice FOLDER]. With the
defaults it takes hours.
"""

import argparse
import math
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.support import ours, stock
from benchmarks.support.again import measured_again, reached
from benchmarks.support.cases import Case, Summary, moments_of, summary
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Operator, find_model
from benchmarks.support.places import Places, places_of
from benchmarks.support.runs import Run, finite
from benchmarks.support.trajectory import Trial, best
from fractune.local.noise_file import NOISE_FILE
from fractune_core.errors import ShareUnavailable
from fractune_core.records import Kind, TuningRecord
from fractune_core.shares import Share
from fractune_workers.gpu.nvml import open_nvml, visible_gpu

TIME_BAR = 0.1
RATE_BAR = 5.0
LATENCY_BAR = 0.6
TIME, LATENCY, RATE = "time to quality", "final latency", "seconds a trial"
BARS = {TIME: TIME_BAR, LATENCY: LATENCY_BAR, RATE: 1 / RATE_BAR}
"""of ours over stock's: in the median case, the last one in the median pair"""
ENOUGH_CASES = 12
OUR_LAYOUTS, PLAIN = "our-layouts", "plain"
"""what stock tunes"""


@dataclass(frozen=True)
class Settings:
    models: tuple[str, ...] = ("squeezenet", "resnet50", "magika")
    peer: str = OUR_LAYOUTS
    share: str = "cpu:2"
    trials: int = 384
    round_size: int = 64
    tasks: int = 6
    """operators of each model, at most"""
    pairs: int = 3
    patience: int = 2
    """how often ours may be given again to get where stock ends"""
    target: str = ""
    """as `fractune tune --target` takes it; empty = of the processor here, the first GPU for a share of a GPU"""
    advice: str = ""
    """state folder with the advice of `fractune noise`; empty = none"""


QUICK = Settings(models=("squeezenet",), trials=8, round_size=8, tasks=1, pairs=1, patience=1)


@dataclass(frozen=True)
class Ratios:
    """Ours over stock's, but for `rate`; infinite where a side never got there."""

    time_to_quality: float
    time_to_near: float
    """within 2 % of it"""
    rate: float
    """trials/s of ours over stock's, from the beginning of tuning to the last measured trial"""
    wall: float
    cpu: float
    latency: float
    """geometric mean over the operators, measured again"""
    model_latency: float
    """sum of weight x time over the operators, measured again"""


@dataclass(frozen=True)
class Pair:
    """Both sides once, under one seed."""

    ratios: Ratios
    cases: list[Case]
    report: dict[str, Any]
    """where they come from, for JSON"""


def main() -> None:
    settings, args = _parse()
    found: dict[str, Any] = {}
    cases: list[Case] = []
    rates: list[tuple[float, float]] = []
    for places in _all_places(settings):
        name = places.model.name
        pairs: list[Pair] = []
        for number in range(settings.pairs):
            pair = _pair(places, settings, number)
            _print_pair(name, number, pair.ratios, pair.report)
            pairs.append(pair)
            cases += pair.cases
            rates.append((pair.report["ours"]["trials_per_s"], pair.report["stock"]["trials_per_s"]))
        found[name] = {
            "operators": [op.name for op in places.operators],
            "without_counterpart": places.left_out,
            "pairs": [{**pair.report, "ratios": _json(pair.ratios)} for pair in pairs],
            "median": _json(_median([pair.ratios for pair in pairs])),
        }
        summaries = _summaries(cases, rates)
        summary = {
            what: {name: finite(value) for name, value in asdict(each).items()} for what, each in summaries.items()
        }
        data = {"settings": asdict(settings), "bars": BARS, "cases": [_case_json(case) for case in cases]}
        result = "vs_stock" if settings.peer == OUR_LAYOUTS else f"vs_stock_{settings.peer}"
        write_result(result, args, {**data, "summary": summary, "models": found})
    _print_cases(cases)
    print(_verdict(settings.peer, summaries))


def _parse() -> tuple[Settings, argparse.Namespace]:
    parser = arguments(__doc__)
    parser.add_argument("--models", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--peer", choices=(OUR_LAYOUTS, PLAIN), help="what stock tunes (our-layouts)")
    parser.add_argument("--share")
    parser.add_argument("--trials", type=int, help="over all operators of a model")
    parser.add_argument("--round", type=int, dest="round_size", help="candidates a round")
    parser.add_argument("--tasks", type=int, help="operators of each model, at most")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--patience", type=int, help="commands of ours at most after the first")
    parser.add_argument("--target", help="what code is made for (the processor here)")
    parser.add_argument("--advice", help="state folder that `fractune noise` saved its advice in")
    args = parser.parse_args()
    given = {f.name: getattr(args, f.name) for f in fields(Settings) if getattr(args, f.name) is not None}
    settings = replace(QUICK if args.quick else Settings(), **given)
    if not settings.target and Share.parse(settings.share).device_kind == "cuda":
        settings = replace(settings, target=_target_of_gpu())
    return settings, args


def _all_places(settings: Settings) -> list[Places]:
    """Of every model, before any is tuned. Prints the operators that are left out."""
    is_plain, found = settings.peer == PLAIN, []
    for model in [find_model(name) for name in settings.models]:
        places = places_of(model, settings.target, settings.tasks, is_plain=is_plain)
        for name, reason in places.left_out.items():
            print(f"{model.name}: {name} is left out, it has no plain counterpart: {reason}")
        found.append(places)
    return found


def _target_of_gpu() -> str:
    """Raises SystemExit if none exists."""
    try:
        return f"cuda:{visible_gpu(open_nvml().gpus()).arch}"
    except ShareUnavailable as error:
        raise SystemExit(f"vs_stock: {error}") from error


class _Ours:
    """Our side: its command, given once or more often in one state folder."""

    def __init__(self, places: Places, settings: Settings, seed: int, folder: Path) -> None:
        self._model, self._settings, self._folder = places.model, settings, folder
        self._options = ["--round", str(settings.round_size), "--only", places.names("ours"), "--seed", str(seed)]
        self._options += ["--target", settings.target] if settings.target else []
        self._take_advice()
        self._clock_s = 0.0
        self.records: list[TuningRecord] = []
        self.trials: list[Trial] = []
        """of all commands, on a clock that starts with the first and stands still between them"""

    def _take_advice(self) -> None:
        """Every run begins with a state folder that knows nothing but what the noise experiment found."""
        if self._settings.advice:
            (self._folder / "state").mkdir(mode=0o700)
            shutil.copy(Path(self._settings.advice) / NOISE_FILE, self._folder / "state" / NOISE_FILE)

    def tune(self, budget: str) -> Run:
        """Give the command, with as many trials under the option `budget`."""
        print(f"{self._model.name}: fractune {budget} ...", flush=True)
        state, options = self._folder / "state", [budget, str(self._settings.trials), *self._options]
        tuned = ours.tune(self._model, self._settings.share, state, self._folder, options)
        self.records = ours.records_of(state)
        run = ours.as_run(tuned, self.records, self._settings.share)
        self.trials += _since(run.process.started - self._clock_s, run.new)
        self._clock_s += run.process.wall_s
        return run


def _pair(places: Places, settings: Settings, number: int) -> Pair:
    """Run both sides, stock first in even pairs, and compare them."""
    operators = places.operators
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        side = _Ours(places, settings, number, Path(folder))
        if number % 2:
            mine = side.tune("--trials")
            peer = _run_stock(places, settings, number)
        else:
            peer = _run_stock(places, settings, number)
            mine = side.tune("--trials")
        for name, run in (("stock", peer), ("fractune", mine)):
            _check_same(name, run, operators)
        peers = _since(peer.process.started, peer.trials)
        final = {"stock": _traces(best(peers)), "ours": ours.winners(side.records, settings.share)}
        sides = {"stock": peers, "ours": side.trials}  # of ours, a list that grows with each command
        target = side.records[0].target
        again = measured_again(places.matches, final, sides, target, settings.share)
        times = {
            op: {name: again[op][name].get(held.get(op, ""), math.inf) for name, held in final.items()} for op in again
        }
        later = again
        moments = reached(sides, mine.weights, later)
        commands = 1
        while math.isinf(moments["quality"]["ours"]) and commands <= settings.patience:
            side.tune("--extra-trials")
            commands += 1
            later = measured_again(places.matches, final, sides, target, settings.share)
            moments = reached(sides, mine.weights, later)
    report = {
        "stock": peer.to_json(),
        "ours": mine.to_json(),
        "commands_of_ours": commands,
        "measurers_of_ours": len({record.worker for record in side.records if record.kind is Kind.TRIAL}),
        "time_to_quality_s": {goal: {k: finite(v) for k, v in each.items()} for goal, each in moments.items()},
        "measured_again_s": {op.name: {k: finite(v) for k, v in times[op.workload_hash].items()} for op in operators},
        "left_out": [op.name for op in operators if not _comparable(times[op.workload_hash], "ours")],
    }
    cases = []
    for operator in operators:
        name = operator.workload_hash
        cases.append(Case(operator.name, number, times[name], moments_of(sides, name, later[name])))
    return Pair(_ratios(peer, mine, moments, times), cases, report)


def _since(start: float, trials: Sequence[Trial]) -> list[Trial]:
    return [replace(trial, at_s=trial.at_s - start) for trial in trials]


def _run_stock(places: Places, settings: Settings, number: int) -> Run:
    """In it, what stock tuned in an operator's place has the name of ours."""
    model, peer = places.model, settings.peer
    print(f"{model.name}: stock TVM, {peer} ...", flush=True)
    run = stock.tune(
        model,
        settings.share,
        places.names("stock"),
        settings.trials,
        settings.round_size,
        number + 1,
        settings.target,
        is_plain=peer == PLAIN,
    )
    ours_of = {match["stock"].workload_hash: match["ours"].workload_hash for match in places.matches}
    weights = {ours_of.get(name, name): weight for name, weight in run.weights.items()}
    return replace(
        run, weights=weights, trials=[replace(t, operator=ours_of.get(t.operator, t.operator)) for t in run.trials]
    )


def _check_same(side: str, run: Run, operators: Sequence[Operator]) -> None:
    """Raises SystemExit unless this side tuned just these workloads, with these weights."""
    wanted = {operator.workload_hash: operator.weight for operator in operators}
    if run.weights != wanted:
        raise SystemExit(f"vs_stock: {side} tuned {run.weights}, not {wanted} (weight by workload hash)")


def _traces(held: Mapping[str, Trial]) -> dict[str, str]:
    return {name: trial.trace for name, trial in held.items()}


def _ratios(
    peer: Run, mine: Run, moments: Mapping[str, Mapping[str, float]], times: dict[str, dict[str, float]]
) -> Ratios:
    return Ratios(
        time_to_quality=_over(moments["quality"]["ours"], moments["quality"]["stock"]),
        time_to_near=_over(moments["near"]["ours"], moments["near"]["stock"]),
        rate=mine.trials_per_s / peer.trials_per_s,
        wall=mine.process.wall_s / peer.process.wall_s,
        cpu=mine.process.cpu_s / peer.process.cpu_s,
        latency=_latency_ratio(times, "ours"),
        model_latency=_over(_weighted(times, mine.weights, "ours"), _weighted(times, mine.weights, "stock")),
    )


def _latency_ratio(times: dict[str, dict[str, float]], side: str) -> float:
    ratios = [held[side] / held["stock"] for held in times.values() if _comparable(held, side)]
    return statistics.geometric_mean(ratios) if ratios else math.nan


def _comparable(held: dict[str, float], side: str) -> bool:
    return math.isfinite(held[side]) and math.isfinite(held["stock"])


def _weighted(times: dict[str, dict[str, float]], weights: dict[str, int], side: str) -> float:
    return sum(weights[name] * held[side] for name, held in times.items() if _comparable(held, "ours"))


def _over(mine: float, peers: float) -> float:
    """Infinite when ours never got there; not a number when only stock, or neither, did not."""
    return mine / peers if math.isfinite(peers) and peers > 0 else math.nan


def _median(ratios: Sequence[Ratios]) -> Ratios:
    names = Ratios.__dataclass_fields__
    return Ratios(**{name: statistics.median(getattr(each, name) for each in ratios) for name in names})


def _json(ratios: Ratios) -> dict[str, float | None]:
    return {name: finite(value) for name, value in asdict(ratios).items()}


def _print_pair(model: str, number: int, ratios: Ratios, report: dict[str, Any]) -> None:
    print(f"{model}, pair {number + 1}{'stock':>22}{'ours':>12}{'ratio':>10}")
    rows = [
        ("wall, s", "wall_s", ratios.wall),
        ("CPU, s", "cpu_s", ratios.cpu),
        ("peak memory, bytes", "peak_bytes", None),
        ("before tuning, s", "before_tuning_s", None),
        ("tuning, s", "tuning_span_s", None),
        ("trials", "trials", None),
        ("trials/s", "trials_per_s", ratios.rate),
    ]
    for title, name, ratio in rows:
        _print_row(title, report["stock"][name], report["ours"][name], ratio)
    for side in ("stock", "ours"):
        failures = ", ".join(f"{count} x {cause}" for cause, count in report[side]["failures"].items())
        print(f"  failed trials of {side}: {failures or 'none'}")
    for goal, ratio in (("quality", ratios.time_to_quality), ("near", ratios.time_to_near)):
        reached = report["time_to_quality_s"][goal]
        _print_row(f"time to {goal}, s", reached["stock"], reached["ours"], ratio)
    print(f"{'  commands of ours for that':<36}{report['commands_of_ours']:>12}")
    print(f"{'measurers of ours':<36}{report['measurers_of_ours']:>12}")
    print(f"{'final latency, measured again: geomean':<46}{ratios.latency:>12.3f}")
    print(f"{'  sum over operators':<46}{ratios.model_latency:>12.3f}")
    if report["left_out"]:
        print(f"  left out, a side has no right candidate: {', '.join(report['left_out'])}")


def _print_row(title: str, peers: float | None, mine: float | None, ratio: float | None) -> None:
    cells = ["never" if value is None else f"{value:.4g}" for value in (peers, mine)]
    print(f"{title:<24}{cells[0]:>12}{cells[1]:>12}" + ("" if ratio is None else f"{ratio:>10.3f}"))


def _summaries(cases: Sequence[Case], rates: Sequence[tuple[float, float]]) -> dict[str, Summary]:
    """By claim. `rates`: trials/s of ours and of stock's, a pair each."""
    return {
        TIME: summary([case.reached_s["ours"] for case in cases], [case.reached_s["stock"] for case in cases]),
        LATENCY: summary([case.latency_s["ours"] for case in cases], [case.latency_s["stock"] for case in cases]),
        RATE: summary([1 / mine for mine, _ in rates], [1 / peers for _, peers in rates]),
    }


def _case_json(case: Case) -> dict[str, Any]:
    latency_s = {side: finite(secs) for side, secs in case.latency_s.items()}
    reached_s = {side: finite(secs) for side, secs in case.reached_s.items()}
    return {"operator": case.operator, "seed": case.seed, "latency_s": latency_s, "reached_s": reached_s}


def _print_cases(cases: Sequence[Case]) -> None:
    print(f"{'operator, seed':<40}{'latency':>10}{'time to it':>12}   of stock's")
    for case in cases:
        ratios = [_over(each["ours"], each["stock"]) for each in (case.latency_s, case.reached_s)]
        print(f"{case.operator + ', ' + str(case.seed):<40}{ratios[0]:>10.2f}{ratios[1]:>12.2f}")


def _verdict(peer: str, summaries: Mapping[str, Summary]) -> str:
    """One line: the medians, their intervals, and whether the bars hold."""
    lines = []
    for what, found in summaries.items():
        bar = BARS[what]
        verdict = found.verdict(bar) if what == RATE or found.cases >= ENOUGH_CASES else "cannot tell"
        text = f"{found.median:.2f} ({found.low:.2f}..{found.high:.2f}, {found.cases} cases)"
        lines.append(f"{what} {text}, bar {bar:g}: {verdict}")
    return f"vs_stock, ours over stock's ({peer}): {'; '.join(lines)}"


if __name__ == "__main__":
    main()
