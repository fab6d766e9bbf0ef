"""A share that was never searched: measuring the best of another share's log there, against a search of its own.

The model is tuned at one share. Then the other share gets its schedules in two ways: in that state by `--rerank K`, and
from a fresh state by a search of as many trials as the first share had. Wall time of the whole
commands; latency of both bundles at the share, measured anew in turn.

Usage: python -m benchmarks.rerank [--quick] [--out FILE] [--models A,B] [--trials N] [--best K] [--seeds N]
[--known cpu:1] [--share cpu:2]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.contest import time_bundles
from benchmarks.machine import arguments, write_result
from benchmarks.models import Model, find_model
from benchmarks.trajectory import geometric_mean

SAVED_BAR = 0.8
LATENCY_BAR = 1.03
TURNS = 21


def main() -> None:
    args = _parse()
    rounds = []
    for name in args.models:
        for seed in range(args.seeds):
            told = {"model": name, "seed": seed, **_round(find_model(name), args, seed)}
            print(
                f"{name}, seed {seed}: {args.share} by a search {told['search_s']:.1f} s, by rerank "
                f"{told['rerank_s']:.1f} s, saved {told['saved']:.0%}; latency {told['latency']:.3f} of the search's, "
                f"the search's own schedules against themselves {told['noise']:.3f}"
            )
            rounds.append(told)
    saved = statistics.mean(each["saved"] for each in rounds)
    latency = geometric_mean(each["latency"] for each in rounds)
    settings = {key: getattr(args, key) for key in ("trials", "best", "known", "share")}
    bars = {"saved": SAVED_BAR, "latency": LATENCY_BAR}
    summary = {"saved": saved, "latency": latency}
    write_result("rerank", args, {**settings, "turns": TURNS, "bars": bars, "summary": summary, "rounds": rounds})
    print(
        f"rerank: {saved:.0%} of a search's wall time saved (aim {SAVED_BAR:.0%}), latency {latency:.3f} of the "
        f"search's (aim {LATENCY_BAR:g})"
    )


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--models", type=lambda text: text.split(","), default=["squeezenet"])
    parser.add_argument("--trials", type=int, help="of each search, over all operators")
    parser.add_argument("--best", type=int, default=4, help="K of --rerank")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--known", default="cpu:1", help="the share that the log knows")
    parser.add_argument("--share", default="cpu:2", help="the share that it does not")
    parser.add_argument("--only", default="", help="operators, as `fractune tune --only` takes them")
    args = parser.parse_args()
    args.trials = args.trials or (8 if args.quick else 256)
    args.seeds = args.seeds or (1 if args.quick else 2)
    args.only = args.only or ("conv2d1_" if args.quick else "")
    return args


def _round(model: Model, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    options = ["--seed", str(seed), "--only", args.only]
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        known, fresh = Path(folder) / "known", Path(folder) / "fresh"
        trials = ["--trials", str(args.trials)]
        ours.tune(model, args.known, known / "state", known, [*trials, *options])
        found = {
            "rerank": ours.tune(model, args.share, known / "state", known, ["--rerank", str(args.best), *options]),
            "search": ours.tune(model, args.share, fresh / "state", fresh, [*trials, *options]),
        }
        contestants = [(found[way].bundle, args.share) for way in ("rerank", "search", "search")]
        again, search, itself = map(statistics.median, time_bundles(args.share, contestants, TURNS))
    wall = {way: each.process.wall_s for way, each in found.items()}
    return {
        "rerank_s": wall["rerank"],
        "search_s": wall["search"],
        "saved": 1.0 - wall["rerank"] / wall["search"],
        "latency_s": {"rerank": again, "search": search, "search again": itself},
        "latency": again / search,
        "noise": itself / search,
    }


if __name__ == "__main__":
    main()
