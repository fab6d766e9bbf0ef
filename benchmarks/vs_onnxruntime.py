"""Against ONNX Runtime: the time until a tuned model is as fast, and its speed in the end.

Each model is tuned from a fresh state by `fractune.tune(until_beats="onnxruntime")`. Tuning runs in steps, the first
without a search (`--trials 0`). It ends when the bundle beats ONNX Runtime by `--min-gain` at every share (default:
half of its time, so hardly ever), or when the minutes are over. After each step the bundle and ONNX Runtime are timed
alternately, with nothing else running, in a process that is confined to the share. ONNX Runtime has a thread for each
core of the share. So has the bundle, but a tiny model runs on one. This gives the curve from tuning time to ratio. The
reported ratio of a model is timed once more in the end, by repeats that decided nothing. Outputs are compared, which
means most for trained weights. A model that fails is a row with its cause.

Both are timed in a loop, where one request follows the other, and paced, where each request comes 20 ms after the
previous answer. The curve and the goal are of the loop. Then both answer requests that arrive at random, at 30 % of
the rate of the faster one in its loop. A latency counts from the arrival, and p50 is reported.

A quantized model is timed beside a second session of ONNX Runtime too, which computes exactly: the default one
saturates without VNNI. Outputs are compared with those of the exact session.

Results are written after every model, with a picture (.svg) beside them. `--tables FILE` prints a result file as the
tables of README.md and docs/performance.md, and measures nothing.

Usage: python -m benchmarks.vs_onnxruntime [--quick] [--out FILE] [--models A,B] [--shares cpu:1,cpu:2]
[--minutes-a-model 15] [--min-gain 0.5] [--trials N] [--repeats 9] [--tables FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import fractune
from benchmarks.support.at_load import at_load_json, blocks_at_load
from benchmarks.support.machine import RESULTS, arguments, write_result
from benchmarks.support.models import Model, find_model
from benchmarks.support.processes import import_path
from benchmarks.support.ratio_picture import draw_ratios
from benchmarks.support.ratio_tables import exact_table, full_table, short_table
from fractune.errors import FractuneError
from fractune.features.goal.goal_result import Goal, goal_json, timing_json
from fractune.features.tune.goal import timing_in
from fractune.local.timing_process import timing_process
from fractune.text.text import span_text, time_text
from fractune_core.served import LOAD_TEXT

PEER = "onnxruntime"
MODELS = (
    *("squeezenet", "resnet50", "densenet121", "shufflenet", "inception_v2"),
    *("magika", "ocr_detection", "ocr_recognition", "crnn", "crnn_dynamic", "smart_turn", "silero", "silero_ifless"),
    *("minilm", "minilm_dynamic", "transformer", "yolov8n", "speech_embedding"),
)
_FEWEST_REPEATS = 6
"""for an interval of 95 %"""
_QUICK_OPERATORS = "conv2d1_"
"""of squeezenet: what a smoke run tunes where no other model is named"""


def main() -> None:
    args = _parse()
    if args.tables:
        _print_tables(args.tables)
        return
    rows: list[dict[str, Any]] = []
    for name in args.models:
        row = _row(name, args)
        _print_row(row)
        rows.append(row)
        _write(args, rows)
    print(verdict(rows))


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--models", type=_names, help=f"by default {','.join(MODELS)}")
    parser.add_argument("--shares", type=_names, default=["cpu:1", "cpu:2"])
    parser.add_argument("--minutes-a-model", type=float, help="by default 15")
    parser.add_argument("--min-gain", type=float, default=0.5, help="part of its time by which to beat it")
    parser.add_argument("--trials", type=int, help="of a model at most; by default no limit")
    parser.add_argument("--repeats", type=int, help="of the last timing of each model and share; by default 9")
    parser.add_argument("--tables", type=Path, help="print a result file as Markdown, and measure nothing")
    args = parser.parse_args()
    args.only = _QUICK_OPERATORS if args.quick and not args.models else ""
    args.models = args.models or (["squeezenet"] if args.quick else list(MODELS))
    args.minutes_a_model = args.minutes_a_model or (3.0 if args.quick else 15.0)
    args.trials = args.trials if args.trials is not None else (8 if args.quick else None)
    args.repeats = args.repeats or (_FEWEST_REPEATS if args.quick else 9)
    if args.repeats < _FEWEST_REPEATS:
        parser.error(f"--repeats {args.repeats}: an interval takes {_FEWEST_REPEATS} or more")
    return args


def _names(text: str) -> list[str]:
    return text.split(",")


def _print_tables(path: Path) -> None:
    rows = json.loads(path.read_text(encoding="utf-8"))["models"]
    if any("paced" not in timed for row in rows for timed in row.get("final", {}).values()):
        raise SystemExit(f"{path} is from before paced requests were timed; run the benchmark again")
    tables = (short_table(rows), full_table(rows), exact_table(rows), verdict(rows))
    print(*filter(None, tables), sep="\n\n")


def _row(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The result of a model; `error` in its place where something failed. `wall_s`: seconds of all of it."""
    began = time.monotonic()
    try:
        model = find_model(name)
        with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
            tuned = _tuned(model, args, Path(folder))
        return {"model": name, "trained": model.trained, **tuned, "wall_s": time.monotonic() - began}
    except (FractuneError, SystemExit) as error:
        return {"model": name, "error": f"{type(error).__name__}: {error}"}


def _tuned(model: Model, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    result = fractune.tune(
        model.path,
        args.shares,
        until_beats=PEER,
        min_gain=args.min_gain,
        minutes=args.minutes_a_model,
        trials=args.trials,
        only=args.only,
        inputs=model.inputs,
        state=folder / "state",
        out=folder,
        progress=False,
    )
    return {
        "goal": goal_json(cast(Goal, result.goal)),  # it was requested
        "operators": len(result.job.operators),
        "final": {share: _final(share, model.path, result.bundle.path, args.repeats) for share in args.shares},
    }


def _final(share: str, model: Path, bundle: Path, repeats: int) -> dict[str, Any]:
    """All times of the bundle and the peer at `share`, in one process."""
    child = "benchmarks.support.at_load_child"
    with timing_process(share, {"PYTHONPATH": import_path()}, module=child) as call:
        timing = timing_in(call, share, model, bundle, repeats)
        loop_s = (timing.our_s, timing.peer_s)
        latency_secs = call("answer", path=str(model), bundle=str(bundle), blocks=blocks_at_load(loop_s))
    return {**timing_json(timing), "at_load": at_load_json(loop_s, latency_secs)}


def _write(args: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> None:
    settings = {key: getattr(args, key) for key in ("shares", "minutes_a_model", "min_gain", "trials", "repeats")}
    write_result("vs_onnxruntime", args, {**settings, "summary": summary(rows), "models": rows})
    if not args.quick or args.out is not None:
        found = curves(rows)
        if found:
            draw_ratios(found, PEER, (args.out or RESULTS / "vs_onnxruntime.json").with_suffix(".svg"))


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By share and model: seconds of tuning, and the ratio that a step ended with."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        for step in row.get("goal", {}).get("steps", ()):
            for share, timed in step["shares"].items():
                found.setdefault(share, {}).setdefault(row["model"], []).append((step["tuning_s"], timed["ratio"]))
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means of the ratios, ours over the peer's, over all cases (model x share) and by share, in a loop and
    `paced`; of how many the interval is below 1. `untuned`: of the first step, which searches nothing, in a loop.
    `exact`: of quantized models, over ONNX Runtime with exact products. `at_load`: of p50 at 30 % load.
    `paced_over_loop`: paced seconds over seconds in a loop, by side and share. A mean over no cases is None.
    """
    cases = [(share, timed) for row in rows for share, timed in row.get("final", {}).items()]
    first = [timed["ratio"] for row in rows if "goal" in row for timed in row["goal"]["steps"][0]["shares"].values()]
    return {
        "cases": len(cases),
        "failed": [row["model"] for row in rows if "error" in row],
        **_means(cases),
        "paced": _means([(share, timed["paced"]) for share, timed in cases]),
        "at_load": _mean_ratios([(share, timed["at_load"]) for share, timed in cases if "at_load" in timed]),
        "exact": _means([(share, timed["exact"]) for share, timed in cases if timed.get("exact")]),
        "paced_over_loop": {side: _paced_over_loop(side, cases) for side in ("our", "peer")},
        "untuned": _mean(first),
    }


def _paced_over_loop(side: str, cases: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, float | None]:
    over = [(share, timed["paced"][f"{side}_s"] / timed[f"{side}_s"]) for share, timed in cases]
    return _by_share(over)


def _by_share(ratios: Sequence[tuple[str, float]]) -> dict[str, float | None]:
    return {
        share: _mean([ratio for each, ratio in ratios if each == share])
        for share in dict.fromkeys(share for share, _ in ratios)
    }


def _means(cases: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    return {**_mean_ratios(cases), "beaten": sum(timed["ratio_high"] < 1.0 for _, timed in cases)}


def _mean_ratios(cases: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    return {
        "ratio": _mean([timed["ratio"] for _, timed in cases]),
        "by_share": _by_share([(share, timed["ratio"]) for share, timed in cases]),
    }


def _mean(ratios: Sequence[float]) -> float | None:
    return statistics.geometric_mean(ratios) if ratios else None


def _print_row(row: Mapping[str, Any]) -> None:
    if "error" in row:
        print(f"{row['model']}: {row['error']}", flush=True)
        return
    goal = row["goal"]
    spent = f"{goal['trials']} trials, {span_text(goal['tuning_s'])} of tuning, {len(goal['steps'])} steps"
    print(f"{row['model']}: {spent}; {goal['end']}")
    first = goal["steps"][0]
    parity_s = {each["share"]: each["parity_s"] for each in goal["shares"]}
    for share, timed in row["final"].items():
        paced, at_load = timed["paced"], timed["at_load"]
        parity = "never" if parity_s[share] is None else f"after {span_text(parity_s[share])}"
        exact = timed["exact"]
        beside = f"with exact products {time_text(exact['peer_s'])}: {exact['ratio']:.2f}; " if exact else ""
        print(
            f"  {share:<7}{time_text(timed['our_s']):>9} against {time_text(timed['peer_s']):>8}: "
            f"{timed['ratio']:.2f} ({timed['ratio_low']:.2f} .. {timed['ratio_high']:.2f}); paced "
            f"{time_text(paced['our_s'])} against {time_text(paced['peer_s'])}: {paced['ratio']:.2f}; p50 at "
            f"{LOAD_TEXT} {time_text(at_load['our_p50_s'])} against {time_text(at_load['peer_p50_s'])}: "
            f"{at_load['ratio']:.2f}; {beside}"
            f"without a search {first['shares'][share]['ratio']:.2f} after {span_text(first['tuning_s'])}; "
            f"parity {parity}; outputs differ by {timed['max_rel_difference']:.1e}",
            flush=True,
        )


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line: the geometric mean of the ratios."""
    overview = summary(rows)
    failed = f"; failed: {', '.join(overview['failed'])}" if overview["failed"] else ""
    if not overview["cases"]:
        return f"vs_onnxruntime: no model was timed{failed}"
    at_load = overview["at_load"]
    p50 = f"; p50 at {LOAD_TEXT} {_mean_text(at_load)}" if at_load["ratio"] else ""
    return (
        f"vs_onnxruntime, ours over ONNX Runtime, {overview['cases']} cases: in a loop {_means_text(overview)}; paced "
        f"{_means_text(overview['paced'])}{p50}; without a search {overview['untuned']:.2f}; paced over loop: ours "
        f"{_shares_text(overview['paced_over_loop']['our'])}, ONNX Runtime's "
        f"{_shares_text(overview['paced_over_loop']['peer'])}{failed}"
    )


def _means_text(means: Mapping[str, Any]) -> str:
    return f"{_mean_text(means)}, {means['beaten']} beaten beyond the noise"


def _mean_text(means: Mapping[str, Any]) -> str:
    return f"geometric mean {means['ratio']:.3f} ({_shares_text(means['by_share'])})"


def _shares_text(by_share: Mapping[str, float]) -> str:
    return ", ".join(f"{share} {mean:.2f}" for share, mean in by_share.items())


if __name__ == "__main__":
    main()
