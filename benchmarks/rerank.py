"""A share that was never searched: measuring the best of another share's log there, against a separate search.

The model is tuned at one share. Then the other share gets its schedules in two ways. One is `--rerank K` in a copy of
that state, for each K of `--best`. The other is a search from a fresh state, with as many trials as the first share
had. The figures are the wall time of the whole commands, and the latency of all bundles at the share, measured again
interleaved.

Usage: python -m benchmarks.rerank [--quick] [--out FILE] [--models A,B] [--trials N] [--best K,K] [--seeds N]
[--known cpu:1] [--share cpu:2] [--only A,B]
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.interleaved import time_bundles
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model

SAVED_BAR = 0.8
LATENCY_BAR = 1.03
TURNS = 21


def main() -> None:
    args = _parse()
    rounds = []
    for name in args.models:
        for seed in range(args.seeds):
            row = {"model": name, "seed": seed, **_round(find_model(name), args, seed)}
            _print(row, args)
            rounds.append(row)
    summary = {str(best): _summary_of([row["rerank"][str(best)] for row in rounds]) for best in args.best}
    settings = {key: getattr(args, key) for key in ("trials", "best", "known", "share", "only")}
    bars = {"saved": SAVED_BAR, "latency": LATENCY_BAR}
    write_result("rerank", args, {**settings, "turns": TURNS, "bars": bars, "summary": summary, "rounds": rounds})
    ways = [f"K={best}: {each['saved']:.0%} saved, latency {each['latency']:.3f}" for best, each in summary.items()]
    print(f"rerank against a search: {'; '.join(ways)} (aim {SAVED_BAR:.0%} and {LATENCY_BAR:g})")


def _summary_of(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean share of the wall time saved, geometric mean of the latencies over the search's."""
    return {
        "saved": statistics.mean(each["saved"] for each in found),
        "latency": statistics.geometric_mean(each["latency"] for each in found),
    }


def _print(row: Mapping[str, Any], args: argparse.Namespace) -> None:
    print(f"{row['model']}, seed {row['seed']}: {args.share} by a separate search {row['search_s']:.1f} s")
    for best, each in row["rerank"].items():
        print(f"  --rerank {best}: {each['wall_s']:.1f} s, saved {each['saved']:.0%}; latency {each['latency']:.3f}")
    print(f"  the search's own schedules against themselves: {row['noise']:.3f}")


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--models", type=lambda text: text.split(","), default=["squeezenet"])
    parser.add_argument("--trials", type=int, help="of each search, over all operators")
    parser.add_argument("--best", type=_numbers, default=[1, 2, 4], help="each K of --rerank to try")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--known", default="cpu:1", help="the share that the log knows")
    parser.add_argument("--share", default="cpu:2", help="the share that it does not")
    parser.add_argument("--only", default="", help="operators, as `fractune tune --only` takes them")
    args = parser.parse_args()
    args.trials = args.trials or (8 if args.quick else 256)
    args.seeds = args.seeds or (1 if args.quick else 2)
    args.only = args.only or ("conv2d1_" if args.quick else "")
    return args


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _round(model: Model, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    options = ["--seed", str(seed), "--only", args.only]
    trials = ["--trials", str(args.trials)]
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        known, fresh = Path(folder) / "known", Path(folder) / "fresh"
        ours.tune(model, args.known, known / "state", known, [*trials, *options])
        reranked = {}
        for best in args.best:
            place = Path(folder) / f"best{best}"
            shutil.copytree(known, place)
            reranked[str(best)] = ours.tune(
                model, args.share, place / "state", place, ["--rerank", str(best), *options]
            )
        search = ours.tune(model, args.share, fresh / "state", fresh, [*trials, *options])
        bundles = [*(each.bundle for each in reranked.values()), search.bundle, search.bundle]
        *latencies_s, search_s, again_s = map(
            statistics.median, time_bundles(args.share, [(bundle, args.share) for bundle in bundles], TURNS)
        )
    wall_s = search.process.wall_s
    return {
        "search_s": wall_s,
        "search_latency_s": search_s,
        "noise": again_s / search_s,
        "rerank": {
            best: {
                "wall_s": each.process.wall_s,
                "saved": 1.0 - each.process.wall_s / wall_s,
                "latency_s": latency_s,
                "latency": latency_s / search_s,
            }
            for (best, each), latency_s in zip(reranked.items(), latencies_s, strict=True)
        },
    }


if __name__ == "__main__":
    main()
