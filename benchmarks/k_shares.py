"""One tuning for two shares against a tuning for each: the cost of the second share, and its effect on quality.

Three tunings of SqueezeNet run from fresh states: for both shares at once, and for each share alone, with the same
trials. "One" is the mean wall time of the two single tunings. Then the variants of the joint and of the single tuning
are timed interleaved at each share, in a confined child, with nothing else running. The single variant is loaded twice:
its ratio to itself shows the size of a meaningless difference.

Usage: python -m benchmarks.k_shares [--quick] [--out FILE] [--model NAME] [--trials N] [--pairs N]
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.interleaved import time_bundles
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model

SHARES = ("cpu:1", "cpu:2")
BOTH = ",".join(SHARES)
WALL_BAR = 1.35
LATENCY_BAR = 1.03
TURNS = 21


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="squeezenet")
    parser.add_argument("--trials", type=int, help="candidates of each tuning, over all operators")
    parser.add_argument("--pairs", type=int, default=1, help="rounds of three tunings")
    args = parser.parse_args()
    trials = args.trials or (16 if args.quick else 256)
    model, rounds = find_model(args.model), []
    for number in range(args.pairs):
        rounds.append(_round(model, trials, number))
        _print_round(number, rounds[-1])
    ratios = {name: statistics.median(each["ratios"][name] for each in rounds) for name in rounds[0]["ratios"]}
    bars = {"to_one": WALL_BAR, "latency": LATENCY_BAR}
    data = {"model": model.name, "trials": trials, "turns": TURNS, "bars": bars, "rounds": rounds, "median": ratios}
    write_result("k_shares", args, data)
    latency = ", ".join(f"{share} {ratios[share]:.3f}" for share in SHARES)
    print(
        f"k_shares: two shares at once take {ratios['to_one']:.2f} of one (bar {WALL_BAR:g}) and "
        f"{ratios['to_both']:.2f} of two tunings; latency over the single tuning's: {latency} (bar {LATENCY_BAR:g})"
    )


def _round(model: Model, trials: int, number: int) -> dict[str, Any]:
    """Tune for both shares and for each, each time with another one first; compare time and bundles."""
    wanted = [BOTH, *SHARES]
    first = number % len(wanted)
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        tuned: dict[str, ours.Tuned] = {}
        for shares in wanted[first:] + wanted[:first]:
            print(f"{model.name}: fractune tune --shares {shares} ...", flush=True)
            place = Path(folder) / shares.replace(":", "-").replace(",", "-")
            options = ["--trials", str(trials), "--seed", str(number)]
            tuned[shares] = ours.tune(model, shares, place / "state", place, options)
        timed = {share: _at(share, tuned[BOTH].bundle, tuned[share].bundle) for share in SHARES}
    walls = {shares: each.process.wall_s for shares, each in tuned.items()}
    singles = [walls[share] for share in SHARES]
    ratios = {"to_one": walls[BOTH] / statistics.mean(singles), "to_both": walls[BOTH] / sum(singles)}
    for share, secs in timed.items():
        ratios[share] = secs["both"] / secs["single"]
        ratios[f"{share} noise"] = secs["single again"] / secs["single"]
    done = {shares: each.result["trials"] for shares, each in tuned.items()}
    cpu = {shares: each.process.cpu_s for shares, each in tuned.items()}
    return {"wall_s": walls, "cpu_s": cpu, "trials": done, "latency_s": timed, "ratios": ratios}


def _at(share: str, both: Path, single: Path) -> dict[str, float]:
    """Median latency in seconds at a share: the joint tuning's variant for it, the single one's, and that again."""
    print(f"timing the bundles at {share} ...", flush=True)
    timed = time_bundles(share, [(both, share), (single, share), (single, share)], TURNS)
    return dict(zip(("both", "single", "single again"), map(statistics.median, timed), strict=True))


def _print_round(number: int, row: dict[str, Any]) -> None:
    print(f"{f'round {number + 1}: tuned for':<24}{'wall, s':>10}{'CPU, s':>10}  new trials")
    for shares in (BOTH, *SHARES):
        print(f"{shares:<24}{row['wall_s'][shares]:>10.1f}{row['cpu_s'][shares]:>10.1f}  {_counts(row, shares)}")
    print(f"{'run at':<12}{'joint, ms':>12}{'single, ms':>12}{'ratio':>10}{'single to itself':>20}")
    for share, secs in row["latency_s"].items():
        ratio, noise = row["ratios"][share], row["ratios"][f"{share} noise"]
        print(f"{share:<12}{secs['both'] * 1e3:>12.3f}{secs['single'] * 1e3:>12.3f}{ratio:>10.3f}{noise:>20.3f}")


def _counts(row: dict[str, Any], shares: str) -> str:
    counts: Sequence[tuple[str, int]] = list(row["trials"][shares].items())
    return ", ".join(f"{count} at {share}" for share, count in counts)


if __name__ == "__main__":
    main()
