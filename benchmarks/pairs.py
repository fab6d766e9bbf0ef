"""The cost of co-location for two models on one processor, and the predicted makespan against the measured one.

Each model is tuned without a search (`fractune tune --trials 0`). Then every pair is measured as by `fractune pair` in
each arrangement: separate cores, the same cores, alternating. Then both models run a number of inferences, once
together and once one after the other; together, the remaining model goes on with the whole. The measured makespan is
compared with the one predicted from the slow-downs. The A/A control is the value of i without a co-runner.

Usage: python -m benchmarks.pairs [--quick] [--out FILE] [--pairs A+B,...] [--rounds N] [--bundles FOLDER]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import find_model
from fractune.features.pair.run import CoLocation, Program, arrange, co_located, time_rounds, usable_cores
from fractune.local.stack import own_env
from fractune_core.analysis.co_location import CoLocationFigures, co_location_figures, makespan_s
from fractune_core.analysis.slowdown_ci import Estimate

ERROR_BAR = 0.05
CONTROL_BAR = 0.03
PAIRS = "squeezenet+magika,squeezenet+squeezenet,shufflenet+magika"
ARRANGEMENTS: Mapping[str, Mapping[str, Any]] = {
    "own cores": {"shares": "cpu:1,cpu:1", "overlap": None, "interleaved": False},
    "same cores": {"shares": None, "overlap": "cpu:2", "interleaved": False},
    "in turn": {"shares": None, "overlap": "cpu:2", "interleaved": True},
}
WORK_S = (2.0, 4.0)
"""what either has to do, in seconds alone on the whole: not equal, so that one is left"""
REPEATS, QUICK_REPEATS = 3, 1
ROUNDS = 9


def main() -> None:
    args = _parse()
    pairs = [tuple(each.split("+")) for each in args.pairs.split(",")]
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        place = args.bundles or Path(folder)
        bundles = {name: _tuned(name, place) for name in dict.fromkeys(name for each in pairs for name in each)}
        found = [_pair(bundles, each, how, args) for each in pairs for how in ARRANGEMENTS]
    errors = summary(found)
    bars = {"makespan_error": ERROR_BAR, "control_error": CONTROL_BAR}
    write_result("pairs", args, {"rounds": args.rounds, "bars": bars, "summary": errors, "pairs": found})
    print(
        f"pairs: makespan {errors['makespan_error_median']:.1%} from the prediction (median, aim {ERROR_BAR:.0%}), at "
        f"most {errors['makespan_error_worst']:.1%}; A/A control at most {errors['control_error_worst']:.1%} from 1 "
        f"(aim {CONTROL_BAR:.0%}); the verdicts disagree in {errors['verdicts_disagree']} of {len(found)} cases"
    )


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", help=f"models to put together (default: {PAIRS})")
    parser.add_argument("--rounds", type=int, help=f"of alone, together, alone (default: {ROUNDS})")
    parser.add_argument("--bundles", type=Path, help="a folder: bundles NAME/*.fractune there are taken, others made")
    args = parser.parse_args()
    args.pairs = args.pairs or ("magika+magika" if args.quick else PAIRS)
    args.rounds = args.rounds or (7 if args.quick else ROUNDS)
    args.repeats = QUICK_REPEATS if args.quick else REPEATS
    return args


def _tuned(name: str, folder: Path) -> Path:
    """The model's bundle with the first candidate of each operator, at one core and at two."""
    there = sorted((folder / name).glob("*.fractune"))
    if there:
        return there[0]
    print(f"{name}: fractune tune --trials 0 ...", flush=True)
    return ours.tune(find_model(name), "cpu:1,cpu:2", folder / "state", folder / name, ["--trials", "0"]).bundle


def _pair(bundles: Mapping[str, Path], names: Sequence[str], how: str, args: argparse.Namespace) -> dict[str, Any]:
    """One pair in one arrangement."""
    began = time.monotonic()
    one, other = (Program("bundle", str(bundles[name])) for name in names)
    arrangement = arrange("cpu", cores=usable_cores(), **ARRANGEMENTS[how])
    with co_located((one, other), arrangement, 0, own_env()) as both:
        rounds = time_rounds(both, args.rounds, lambda _: None)
        figures = co_location_figures(rounds)
        counts = [round(secs / _of(side.whole_s)) for secs, side in zip(WORK_S, figures.sides, strict=True)]
        ran = [(apart_s(both, counts), together_s(both, counts)) for _ in range(args.repeats)]
        variants = [co_runner.description["variant"] for co_runner in (*both.co_runners, *both.wholes)]
    case = {
        "models": list(names),
        "arrangement": how,
        "variants": variants,
        "figures": asdict(figures),
        "makespan_verdict": figures.makespan_verdict,
        "mean_completion_verdict": figures.mean_completion_verdict,
        "counts": counts,
        "predicted_s": predicted_s(figures, counts),
        "apart_s": [apart for apart, _ in ran],
        "together_s": [together for _, together in ran],
        "rounds": [[asdict(times) for times in each] for each in rounds],
        "wall_s": time.monotonic() - began,
    }
    _print(case, figures)
    return case


def predicted_s(figures: CoLocationFigures, counts: Sequence[int]) -> float:
    """Until both have done so many inferences together, by their slow-downs."""
    a, b = figures.sides
    return makespan_s(counts[0] * _of(a.whole_s), counts[1] * _of(b.whole_s), _of(a.r), _of(b.r))


def apart_s(both: CoLocation, counts: Sequence[int]) -> float:
    """Seconds for so many inferences of each, one model after the other, each on the whole."""
    return sum(_work(both, index, 0.0, count) for index, count in enumerate(counts))


def together_s(both: CoLocation, counts: Sequence[int]) -> float:
    """The same with both at once at their places; the one that is left goes on with the whole."""
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        begin_s, ended = both.begin_s(), str(Path(folder) / "ended")
        works = [
            co_runner.call("work", sum(WORK_S), begin_s=begin_s, count=count, ended=ended)
            for co_runner, count in zip(both.co_runners, counts, strict=True)
        ]
        results = [work.result() for work in works]
    end_s = max(each["ended_s"] for each in results)
    left = [count - int(each["done"]) for count, each in zip(counts, results, strict=True)]
    return float(end_s - begin_s) + sum(_work(both, index, end_s, rest) for index, rest in enumerate(left) if rest)


def _work(both: CoLocation, index: int, since_s: float, count: int) -> float:
    """Seconds that so many inferences of a model take on the whole, from `since_s` or else from now on."""
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        begin_s = since_s or time.monotonic()
        co_runner, ended = both.wholes[index], str(Path(folder) / "ended")
        result = co_runner.call("work", sum(WORK_S), begin_s=begin_s, count=count, ended=ended).result()
    return float(result["ended_s"] - begin_s)


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The errors of predictions and controls, as fractions; how often the verdicts disagree."""
    errors = [makespan_error(each) for each in found]
    controls = [abs(side["control"]["median"] - 1.0) for each in found for side in each["figures"]["sides"]]
    verdicts = [{each["makespan_verdict"], each["mean_completion_verdict"]} for each in found]
    return {
        "makespan_error_median": statistics.median(errors),
        "makespan_error_worst": max(errors),
        "control_error_worst": max(controls),
        "verdicts_disagree": sum(each == {"together", "apart"} for each in verdicts),
    }


def makespan_error(case: Mapping[str, Any]) -> float:
    """The distance of the measured median from the prediction, as a fraction of it."""
    return abs(float(statistics.median(case["together_s"])) / float(case["predicted_s"]) - 1.0)


def _print(case: Mapping[str, Any], figures: CoLocationFigures) -> None:
    print(f"{' + '.join(case['models'])}, {case['arrangement']} ({case['wall_s']:.0f} s)")
    for name, side in zip(case["models"], figures.sides, strict=True):
        print(
            f"  {name:<12}{_of(side.whole_s) * 1e3:9.3f} ms on the whole   s {_text(side.s)}   i {_text(side.i)}   "
            f"r {_text(side.r)}   A/A {_text(side.control)}"
        )
    measured_s, apart = statistics.median(case["together_s"]), statistics.median(case["apart_s"])
    print(
        f"  STP {_text(figures.stp)}   ANTT {_text(figures.antt)}   makespan: {case['makespan_verdict']}, mean "
        f"completion: {case['mean_completion_verdict']}\n"
        f"  {case['counts'][0]} and {case['counts'][1]} inferences: predicted {case['predicted_s']:.2f} s, measured "
        f"{measured_s:.2f} s ({measured_s / case['predicted_s'] - 1:+.1%}), one after the other {apart:.2f} s",
        flush=True,
    )


def _of(found: Estimate | None) -> float:
    """The median; a CPU always has a whole."""
    if found is None:
        raise ValueError("a slow-down is not known")
    return found.median


def _text(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.median:.3f} ({found.low:.3f} .. {found.high:.3f})"


if __name__ == "__main__":
    main()
