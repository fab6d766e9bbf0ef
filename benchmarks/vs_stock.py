"""fractune against stock TVM MetaSchedule: the same models, operators, target, trials and size of a round.

Each pair runs one side after the other, each as processes of its own from a fresh state, in the other order every
time. Time to quality: when a side first held the latency (sum of weight x best trial) that stock ends with, by each
side's own trials, on a clock that starts with the process; the second figure starts the clock when tuning begins.
What they end with is then measured again, alone and in turn: of stock the best candidate of every operator, of ours
the one that it publishes, which its own finals chose. Ours also checks its winners, compiles the model and times it,
which its wall and CPU seconds contain.

Usage: python -m benchmarks.vs_stock [--quick] [--out FILE] [--models A,B] [--trials N] [--round N] [--tasks N]
[--pairs N] [--share cpu:N]. With the defaults it takes hours.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import ours, stock
from benchmarks.contest import contest, open_bench
from benchmarks.machine import write_result
from benchmarks.models import Model, Operator, find_model, heavy, operators_of
from benchmarks.runs import Run, finite
from benchmarks.trajectory import Trial, best, geometric_mean
from tuner_core.records import TuningRecord

TIME_BAR = 0.2
RATE_BAR = 5.0
LATENCY_BAR = 1.02


@dataclass(frozen=True)
class Settings:
    models: tuple[str, ...] = ("squeezenet", "resnet50", "magika")
    share: str = "cpu:2"
    trials: int = 384
    round_size: int = 64
    tasks: int = 6
    """operators of each model, at most"""
    pairs: int = 3


QUICK = Settings(models=("squeezenet",), trials=8, round_size=8, tasks=1, pairs=1)


@dataclass(frozen=True)
class Ratios:
    """Ours over stock's, but for `rate`; infinite where a side never got there."""

    time_to_quality: float
    """clock from the start of the process"""
    time_to_quality_tuning: float
    """clock from the beginning of tuning"""
    rate: float
    """trials/s of ours over stock's, from the beginning of tuning to the last measured trial"""
    wall: float
    cpu: float
    latency: float
    """geometric mean over the operators, measured again"""
    model_latency: float
    """sum of weight x time over the operators, measured again"""
    latency_then: float
    """`latency` of what ours held at its time to quality: above 1 its own trials had flattered it"""


def main() -> None:
    settings, out = _parse()
    found: dict[str, Any] = {}
    lines: list[Ratios] = []
    for name in settings.models:
        model = find_model(name)
        operators = heavy(operators_of(model), model.kinds, settings.tasks)
        pairs = []
        for number in range(settings.pairs):
            ratios, told = _pair(model, operators, settings, number)
            _print_pair(name, number, ratios, told)
            pairs.append({**told, "ratios": _json(ratios)})
            lines.append(ratios)
        middle = _median(lines[-settings.pairs :])
        found[name] = {"operators": [op.name for op in operators], "pairs": pairs, "median": _json(middle)}
        lines[-settings.pairs :] = [middle]
        bars = {"time_to_quality": TIME_BAR, "rate": RATE_BAR, "latency": LATENCY_BAR}
        write_result("vs_stock", out, {"settings": asdict(settings), "bars": bars, "models": found})
    print(_verdict(settings.models, lines))


def _parse() -> tuple[Settings, Path | None]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--models", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--share")
    parser.add_argument("--trials", type=int, help="over all operators of a model")
    parser.add_argument("--round", type=int, dest="round_size", help="candidates a round")
    parser.add_argument("--tasks", type=int, help="operators of each model, at most")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--out", type=Path, help="write the JSON here")
    args = vars(parser.parse_args())
    base = QUICK if args.pop("quick") else Settings()
    out = args.pop("out")
    return replace(base, **{name: value for name, value in args.items() if value is not None}), out


def _pair(
    model: Model, operators: Sequence[Operator], settings: Settings, number: int
) -> tuple[Ratios, dict[str, Any]]:
    """Run both sides, stock first in even pairs, and compare them; the ratios, and what they come from."""
    only = ",".join(operator.name for operator in operators)
    if number % 2:
        mine, records = _run_ours(model, settings, only, number)
        peer = _run_stock(model, settings, only, number)
    else:
        peer = _run_stock(model, settings, only, number)
        mine, records = _run_ours(model, settings, only, number)
    for side, run in (("stock", peer), ("fractune", mine)):
        _check_same(side, run, operators)
    moments = {"stock": peer.moment_of(peer.latency_s), "ours": mine.moment_of(peer.latency_s)}
    traces = {
        "stock": _traces(best(peer.trials)),
        "ours": ours.winners(records, settings.share),
        "then": _traces(best(mine.trials, moments["ours"])),
    }
    times = _measure_again(operators, traces, records[0].target, settings.share)
    told = {
        "stock": peer.to_json(),
        "ours": mine.to_json(),
        "quality_s": finite(peer.latency_s),
        "time_to_quality_s": {
            "stock": finite(moments["stock"] - peer.process.started),
            "ours": finite(moments["ours"] - mine.process.started),
        },
        "measured_again_s": {op.name: {k: finite(v) for k, v in times[op.workload_hash].items()} for op in operators},
        "left_out": [op.name for op in operators if not _comparable(times[op.workload_hash], "ours")],
    }
    return _ratios(peer, mine, moments, times), told


def _run_stock(model: Model, settings: Settings, only: str, number: int) -> Run:
    print(f"{model.name}: stock TVM ...", flush=True)
    return stock.tune(model, settings.share, only, settings.trials, settings.round_size, seed=number + 1)


def _run_ours(model: Model, settings: Settings, only: str, number: int) -> tuple[Run, list[TuningRecord]]:
    """The run, and all records of its log."""
    print(f"{model.name}: fractune ...", flush=True)
    options = ["--trials", str(settings.trials), "--round", str(settings.round_size), "--only", only]
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        state = Path(folder) / "state"
        tuned = ours.tune(model, settings.share, state, Path(folder), [*options, "--seed", str(number)])
        records = ours.records_of(state)
    return ours.as_run(tuned, records, settings.share), records


def _check_same(side: str, run: Run, operators: Sequence[Operator]) -> None:
    """Raises SystemExit unless this side tuned just these workloads, with these weights."""
    wanted = {operator.workload_hash: operator.weight for operator in operators}
    if run.weights != wanted:
        raise SystemExit(f"vs_stock: {side} tuned {run.weights}, not {wanted} (weight by workload hash)")


def _traces(held: Mapping[str, Trial]) -> dict[str, str]:
    return {name: trial.trace for name, trial in held.items()}


def _measure_again(
    operators: Sequence[Operator], sides: Mapping[str, Mapping[str, str]], target: str, share: str
) -> dict[str, dict[str, float]]:
    """Seconds by workload hash, then by side; infinite = none. `sides` holds traces by workload hash."""
    bench, cores = open_bench(share)
    times: dict[str, dict[str, float]] = {}
    try:
        for operator in operators:
            name = operator.workload_hash
            traces = {side: held[name] for side, held in sides.items() if name in held}
            found = contest(operator, traces, target, bench, cores) if traces else {}
            times[name] = {side: found.get(side, math.inf) for side in sides}
    finally:
        bench.stop()
    return times


def _ratios(peer: Run, mine: Run, moments: dict[str, float], times: dict[str, dict[str, float]]) -> Ratios:
    return Ratios(
        time_to_quality=_over(moments["ours"] - mine.process.started, moments["stock"] - peer.process.started),
        time_to_quality_tuning=_over(moments["ours"] - mine.tuning_began, moments["stock"] - peer.tuning_began),
        rate=mine.trials_per_s / peer.trials_per_s,
        wall=mine.process.wall_s / peer.process.wall_s,
        cpu=mine.process.cpu_s / peer.process.cpu_s,
        latency=_latency_ratio(times, "ours"),
        model_latency=_over(_weighted(times, mine.weights, "ours"), _weighted(times, mine.weights, "stock")),
        latency_then=_latency_ratio(times, "then"),
    )


def _latency_ratio(times: dict[str, dict[str, float]], side: str) -> float:
    return geometric_mean(held[side] / held["stock"] for held in times.values() if _comparable(held, side))


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


def _print_pair(model: str, number: int, ratios: Ratios, told: dict[str, Any]) -> None:
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
        _print_row(title, told["stock"][name], told["ours"][name], ratio)
    for side in ("stock", "ours"):
        failures = ", ".join(f"{count} x {cause}" for cause, count in told[side]["failures"].items())
        print(f"  failed trials of {side}: {failures or 'none'}")
    reached = told["time_to_quality_s"]
    _print_row("time to quality, s", reached["stock"], reached["ours"], ratios.time_to_quality)
    print(f"{'  on a clock from tuning on':<46}{ratios.time_to_quality_tuning:>12.3f}")
    print(f"{'final latency, measured again: geomean':<46}{ratios.latency:>12.3f}")
    print(f"{'  sum over operators':<46}{ratios.model_latency:>12.3f}")
    print(f"{'  of what ours held at its time to quality':<46}{ratios.latency_then:>12.3f}")
    if told["left_out"]:
        print(f"  left out, a side has no right candidate: {', '.join(told['left_out'])}")


def _print_row(title: str, peers: float | None, mine: float | None, ratio: float | None) -> None:
    cells = ["never" if value is None else f"{value:.4g}" for value in (peers, mine)]
    print(f"{title:<24}{cells[0]:>12}{cells[1]:>12}" + ("" if ratio is None else f"{ratio:>10.3f}"))


def _verdict(models: Sequence[str], medians: Sequence[Ratios]) -> str:
    """One line: the medians against the bars."""

    def each(name: str) -> str:
        return ", ".join(f"{model} {getattr(r, name):.2f}" for model, r in zip(models, medians, strict=True))

    return (
        f"vs_stock, ours over stock: time to quality {each('time_to_quality')} (bar {TIME_BAR:g}); "
        f"trials/s {each('rate')} (bar {RATE_BAR:g}); final latency {each('latency')} (bar {LATENCY_BAR:g})"
    )


if __name__ == "__main__":
    main()
