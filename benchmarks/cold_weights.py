"""Kernels timed alone, over warm weights, against the same kernels inside the whole model.

Alone, an operator is called again and again, so its weights stay in a cache. Inside a model whose weights exceed the
cache they come from memory. Each model is tuned at one core as usual. The finalists of an operator that reads more than
the second-level cache holds are compiled into the whole model, one at a time, and the models are timed interleaved.
The figures: how well the two orders agree (Kendall's tau-b), how often another finalist wins inside the model, and the
time of the model with those winners over that of the bundle as it is, by new repeats.

Usage: python -m benchmarks.cold_weights [--quick] [--out FILE] [--models A,B] [--trials N] [--finalists 4]
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.interleaved import time_bundles
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from fractune_core.analysis.noise import kendall_tau_b
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.files.bundles import Bundle
from fractune_core.records import UNTUNED, Kind, Status, TuningRecord
from fractune_core.shares import GrantedShare

SHARE = "cpu:1"
_TURNS, _FINAL_TURNS = 15, 41
_MOST_OPERATORS = 8
_NEAR = 1.5
"""Candidates that take longer than this times the fastest are no finalists: their order is beyond doubt"""
_BASE, _RERANKED = "cpu:1", "cpu:2"
"""names of variants of the bundle of both; a bundle's variants have names of shares"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="minilm,resnet50,crnn", help="(default: %(default)s)")
    parser.add_argument("--trials", type=int, default=192, help="(default: %(default)s)")
    parser.add_argument("--finalists", type=int, default=4, help="of each operator (default: %(default)s)")
    args = parser.parse_args()
    names = ["squeezenet"] if args.quick else args.models.split(",")
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
            rows.append(_row(find_model(name), args, Path(folder)))
        _print(rows[-1])
        write_result("cold_weights", args, {"trials": args.trials, "rows": rows})
    print(f"cold weights: {'; '.join(map(_line, rows))}")


def _row(model: Model, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    trials = 16 if args.quick else args.trials
    tuned = ours.tune(model, SHARE, folder / "state", folder / "m.fractune", ["--trials", str(trials)])
    records = ours.records_of(folder / "state")
    base = ours.winners(records, SHARE)
    manifest = Bundle(tuned.bundle).manifest
    operators = []
    for operator in _heavy(tuned.result["operators"], manifest["device"]["l2_kib"] * 1024):
        alone = _finalists(records, operator["workload_hash"], base, args.finalists)
        if len(alone) > 1:
            operators.append(_operator(model, operator, alone, base, manifest, folder))
    reranked = {**base, **{each["workload_hash"]: each["best"] for each in operators}}
    found: dict[str, Any] = {"model": model.name, "operators": operators, "ratio": None}
    if reranked != base:
        path = _compiled(model, {_BASE: base, _RERANKED: reranked}, manifest, folder / "both.fractune")
        before, after = time_bundles(SHARE, [(path, _BASE), (path, _RERANKED)], _FINAL_TURNS)
        lost = slowdown(after, before, interleaved=True)
        found |= {"ratio": [1 + lost.median, 1 + lost.low, 1 + lost.high], "secs": [before, after]}
    return found


def _heavy(operators: Sequence[Mapping[str, Any]], l2_bytes: int) -> list[Mapping[str, Any]]:
    """Operators that read and write more than the cache holds, those with the most time first."""
    heavy = [each for each in operators if (each["io_bytes"] or 0) > l2_bytes and each["best_s"].get(SHARE)]
    return sorted(heavy, key=lambda each: -each["weight"] * each["best_s"][SHARE])[:_MOST_OPERATORS]


def _finalists(records: Sequence[TuningRecord], workload: str, base: Mapping[str, str], count: int) -> dict[str, float]:
    """Seconds of an operator's fastest candidates by their trace, as its trials took alone; the bundle's is first."""
    trials = [each for each in records if each.workload_hash == workload and each.kind is Kind.TRIAL]
    secs = {each.trace: each.median_s for each in trials if each.status is Status.OK and each.share == SHARE}
    fastest = sorted(secs, key=lambda trace: secs[trace])[:count]
    near = [trace for trace in fastest if secs[trace] < _NEAR * secs[fastest[0]]]
    return {trace: secs[trace] for trace in dict.fromkeys([base[workload], *near]) if trace in secs}


def _operator(
    model: Model,
    operator: Mapping[str, Any],
    alone: Mapping[str, float],
    base: Mapping[str, str],
    manifest: Mapping[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """An operator's finalists inside the model."""
    workload, traces = operator["workload_hash"], list(alone)
    names = [f"cpu:{place + 1}" for place in range(len(traces))]
    variants = {name: {**base, workload: trace} for name, trace in zip(names, traces, strict=True)}
    path = _compiled(model, variants, manifest, folder / "finalists.fractune")
    timed = time_bundles(SHARE, [(path, name) for name in names], _TURNS)
    inside = [statistics.median(secs) for secs in timed]
    tau = kendall_tau_b(dict(zip(names, alone.values(), strict=True)), dict(zip(names, inside, strict=True)))
    # Another one wins only beyond the noise: the fastest of several looks faster than it is.
    best = min(range(len(traces)), key=lambda place: inside[place])
    gained = slowdown(timed[0], timed[best], interleaved=True) if best else None
    return {
        "name": operator["name"],
        "workload_hash": workload,
        "weight": operator["weight"],
        "alone_s": list(alone.values()),
        "inside_s": inside,
        "tau": tau,
        "best": traces[best] if gained is not None and gained.low > 0 else traces[0],
        "changed": bool(gained is not None and gained.low > 0),
    }


def _compiled(model: Model, variants: Mapping[str, Mapping[str, str]], manifest: Mapping[str, Any], out: Path) -> Path:
    """A bundle of the model with these variants, by trace of each workload."""
    from fractune_workers.children.compiling.child import compile_bundle

    shares = {name: GrantedShare(name, 1, 1, "core", 1 << 30, reserved=False).to_json() for name in variants}
    fields = {"model": manifest["model"], "device": manifest["device"], "shares": shares}
    named = [
        {"name": name, "traces": {workload: trace for workload, trace in traces.items() if trace != UNTUNED}}
        for name, traces in variants.items()
    ]
    compile_bundle(str(model.path), model.inputs or {}, manifest["target"], named, fields, [], str(out))
    return out


def _print(row: Mapping[str, Any]) -> None:
    for each in row["operators"]:
        pairs = zip(each["alone_s"], each["inside_s"], strict=True)
        times = ", ".join(f"{1e6 * alone:.0f} us ({1e3 * inside:.3f} ms)" for alone, inside in pairs)
        mark = " another wins" if each["changed"] else ""
        tau = "-" if each["tau"] is None else f"{each['tau']:.2f}"
        print(f"{row['model']:<12} {each['name']:<40} tau {tau}: {times}{mark}", flush=True)


def _line(row: Mapping[str, Any]) -> str:
    taus = [each["tau"] for each in row["operators"] if each["tau"] is not None]
    changed = sum(each["changed"] for each in row["operators"])
    agreement = f"tau {statistics.fmean(taus):.2f}" if taus else "no operators"
    if row["ratio"] is None:
        return f"{row['model']}: {agreement}, {changed} of {len(row['operators'])} operators changed, no gain"
    middle, low, high = row["ratio"]
    return (
        f"{row['model']}: {agreement}, {changed} of {len(row['operators'])} operators changed, {middle:.3f} "
        f"({low:.3f} .. {high:.3f}) of the time"
    )


if __name__ == "__main__":
    main()
