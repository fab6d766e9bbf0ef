"""The memory of the whole embedded stack while it tunes, and its growth.

One `fractune tune` runs from a fresh state. The proportional set sizes of all its processes are added up every other
second, so shared pages count once. Growth is the mean of the last quarter of the tuning over the mean of the second
quarter, when everything has started.

Usage: python -m benchmarks.memory [--quick] [--out FILE] [--model NAME] [--trials N] [--share cpu:N] [--only TEXT]
"""

import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support import ours
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import find_model
from benchmarks.support.runs import finite

PEAK_BAR_BYTES = 4 << 30
GROWTH_BAR = 1.05


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--share", default="cpu:2")
    parser.add_argument("--only", default="", help="operators, as `fractune tune --only` takes them")
    args = parser.parse_args()
    model = find_model(args.model or ("squeezenet" if args.quick else "resnet50"))
    only = args.only or ("conv2d1_,conv2d2_" if args.quick else "")
    trials = args.trials or (32 if args.quick else 2000)
    options = ["--trials", str(trials), *(["--only", only] if only else [])]
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        tuned = ours.tune(model, args.share, Path(folder) / "state", Path(folder), options)
    process = tuned.process
    tuning = [held for at, held in process.memory if at >= tuned.tuning_began]
    grown = growth(tuning)
    done = tuned.result["trials"][args.share]
    data = {
        "model": model.name,
        "share": args.share,
        "only": only,
        "trials": done,
        "wall_s": process.wall_s,
        "peak_bytes": process.peak_bytes,
        "growth": finite(grown),
        "bars": {"peak_bytes": PEAK_BAR_BYTES, "growth": GROWTH_BAR},
        "history": [[round(at - process.started, 1), held] for at, held in process.memory],
    }
    write_result("memory", args, data)
    for quarter in range(4):
        print(f"quarter {quarter + 1} of the tuning: {_gib(_mean(_quarter(tuning, quarter)))} in the mean")
    print(
        f"memory: {_gib(process.peak_bytes)} at most over {done} trials of {model.name} (bar {_gib(PEAK_BAR_BYTES)}); "
        f"last quarter over the second one: {grown:.3f} (bar {GROWTH_BAR:g})"
    )


def growth(held: Sequence[int]) -> float:
    """Mean of the last quarter over that of the second one; not a number with fewer than eight samples."""
    return _mean(_quarter(held, 3)) / _mean(_quarter(held, 1)) if len(held) >= 8 else math.nan


def _quarter(held: Sequence[int], number: int) -> Sequence[int]:
    return held[len(held) * number // 4 : len(held) * (number + 1) // 4]


def _mean(held: Sequence[int]) -> float:
    return statistics.mean(held) if held else math.nan


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f} GiB"


if __name__ == "__main__":
    main()
