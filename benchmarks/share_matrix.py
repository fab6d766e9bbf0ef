"""Is the schedule tuned at a share the best one to serve it with? Tuned-at x served-at, searches of equal trials.

Each model is tuned from a fresh state at one core, at two cores, and at both at once (built once, measured at both).
The number of trials and the seed are the same. Then everything is measured again, interleaved and with nothing else
running: the three bundles at both shares, and every operator's published schedules at both shares. So the timings that
chose a schedule do not judge it. Intervals cover the timings; --seeds shows the results of other seeds. Where weights
are trained, all variants' outputs are compared with ONNX's reference evaluator. Results are written after every seed,
and --resume goes on from them.

Usage: python -m benchmarks.share_matrix [--quick] [--out FILE] [--models A,B] [--trials N] [--seeds N] [--resume FILE]
"""

import argparse
import json
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.interleaved import interleaved_secs, open_session, time_bundles
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model, operators_of
from benchmarks.support.reference import differences
from fractune_core.analysis.slowdown_ci import Slowdown, ratio, slowdown
from fractune_core.files.bundles import Bundle
from fractune_core.names import UNTUNED_VARIANT

SHARES = ("cpu:1", "cpu:2")
BOTH = ",".join(SHARES)
ROBUST_BAR = 0.05
HEAVY = 0.01
"""of the model's time, in one run: what takes less hardly matters to it, and loses much"""
TURNS, QUICK_TURNS = 21, 5


def main() -> None:
    args = _parse()
    found: dict[str, list[dict[str, Any]]] = json.loads(args.resume.read_text())["models"] if args.resume else {}
    data = {"trials": args.trials, "turns": args.turns, "bars": {"robust": ROBUST_BAR}}
    for name in args.models:
        for seed in range(len(found.get(name, [])), args.seeds):
            run = _model(find_model(name), args, seed)
            _print_model(name, seed, run)
            found.setdefault(name, []).append(run)
            write_result("share_matrix", args, {**data, "summary": _summaries_of(found), "models": found})
    summary = _summaries_of(found)
    for name, run in summary.items():
        _print_summary(name, run)
    print(_verdict(summary))


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--models", type=lambda text: text.split(","))
    parser.add_argument("--trials", type=int, help="of each tuning, over all operators")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--resume", type=Path, help="results of a run of the same trials: its seeds are kept")
    parser.add_argument("--only", default="", help="operators, as `fractune tune --only` takes them")
    args = parser.parse_args()
    args.models = args.models or (
        ["squeezenet"] if args.quick else ["squeezenet", "resnet50", "magika", "ocr5_classifier"]
    )
    args.trials = args.trials or (8 if args.quick else 256)
    args.seeds = args.seeds or (1 if args.quick else 2)
    args.only = args.only or ("conv2d1_" if args.quick else "")
    args.turns = QUICK_TURNS if args.quick else TURNS
    return args


def _model(model: Model, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Tune three times, then measure everything again."""
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        tuned: dict[str, ours.Tuned] = {}
        winners: dict[str, dict[str, str]] = {}
        target = ""
        for shares in (*SHARES, BOTH):
            print(f"{model.name}, seed {seed}: fractune tune --shares {shares} ...", flush=True)
            place = Path(folder) / shares.replace(":", "-").replace(",", "-")
            options = ["--trials", str(args.trials), "--seed", str(seed), "--only", args.only]
            tuned[shares] = ours.tune(model, shares, place / "state", place, options)
            records = ours.records_of(place / "state")
            target = records[0].target
            for share in shares.split(","):
                winners[_label(shares, share)] = ours.winners(records, share)
        bundles = {shares: each.bundle for shares, each in tuned.items()}
        whole = {share: _at(share, bundles, args.turns) for share in SHARES}
        agreement = {shares: differences(model.path, each) for shares, each in bundles.items()} if model.trained else {}
    return {
        "wall_s": {shares: each.process.wall_s for shares, each in tuned.items()},
        "difference_to_reference": agreement,
        "model": whole,
        "operators": _operators(model, winners, target),
    }


def _label(shares: str, share: str) -> str:
    """The name of a schedule: the share of its search; of the joint search also the share it was chosen for."""
    return shares if shares in SHARES else f"joint {share}"


def _at(share: str, bundles: Mapping[str, Path], turns: int) -> dict[str, list[float]]:
    """Seconds of one inference at a share, by finalist, interleaved."""
    joint = bundles[BOTH]
    finalists = {each: (bundles[each], each) for each in SHARES}
    finalists |= {f"joint {each}": (joint, each) for each in SHARES}
    finalists |= {"joint robust": (joint, _robust(joint)), UNTUNED_VARIANT: (joint, UNTUNED_VARIANT)}
    timed = time_bundles(share, list(finalists.values()), turns)
    return dict(zip(finalists, timed, strict=True))


def _robust(bundle: Path) -> str:
    """The variant that loses least at its worst share, by the bundle's own account."""
    choosing: dict[str, dict[str, float]] = Bundle(bundle).manifest["choosing"]
    names = set.intersection(*(set(row) for row in choosing.values())) - {UNTUNED_VARIANT}
    return min(names, key=lambda name: (max(row[name] / min(row.values()) for row in choosing.values()), name))


def _operators(
    model: Model, winners: Mapping[str, Mapping[str, str]], target: str
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Seconds by operator, share and finalist, of the operators that every search has published."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    operators = operators_of(model)
    for share in SHARES:
        session, cores = open_session(share)
        try:
            for operator in operators:
                name = operator.workload_hash
                traces = {label: held[name] for label, held in winners.items() if name in held}
                if len(traces) == len(winners):
                    secs = interleaved_secs(operator, traces, target, session, cores)
                    found.setdefault(operator.name, {})[share] = secs
        finally:
            session.stop()
    return found


def _summaries_of(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    return summaries([run for runs in found.values() for run in runs])


def summaries(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of several models and seeds: the models, all operators, and the operators that take a part of the time, if any
    of those tuned does.
    """
    cases: dict[str, Callable[[Mapping[str, Any]], list[Case]]] = {
        "model": model_cases,
        "operators": operator_cases,
        "heavy operators": partial(operator_cases, part=HEAVY),
    }
    found = {name: [case for run in runs for case in of(run)] for name, of in cases.items()}
    return {name: summary_of(each) for name, each in found.items() if each}


Case = tuple[str, Mapping[str, Sequence[float]]]
"""a share, and seconds there by finalist"""


def summary_of(cases: Sequence[Case]) -> dict[str, Any]:
    """The loss of the off-diagonal to the diagonal, and the losses of the joint search and its robust pick.

    `other`: the schedule of the other share's search over that of this share's. `joint`: what the joint search chose
    for this share, over the same. `robust`: over what its own search chose for the share, the best that its log knows;
    `robust_of_all`: over the fastest of all searches; it cannot know their luck.
    """
    pairs = [(secs[_other(share)], secs[share]) for share, secs in cases]
    joint = [slowdown(secs[f"joint {share}"], secs[share], interleaved=True) for share, secs in cases]
    return {
        "cases": len(cases),
        **_told("other", [slowdown(other, own, interleaved=True) for other, own in pairs]),
        **_told("joint", joint),
        **_told_of_robust([secs for _, secs in cases if "joint robust" in secs]),
    }


def _told_of_robust(cases: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Nothing about operators: their pick is made for the model as a whole."""
    if not cases:
        return {}
    joint = [{name: found for name, found in secs.items() if name.startswith("joint")} for secs in cases]
    return {
        "robust_worst": max(_regret("joint robust", secs) for secs in joint),
        "robust_of_all_worst": max(_regret("joint robust", secs) for secs in cases),
    }


def _told(name: str, losses: Sequence[Slowdown]) -> dict[str, Any]:
    verdicts = Counter("tie" if each.is_tie else "slower" if each.median > 0 else "faster" for each in losses)
    return {
        f"{name}_mean": statistics.geometric_mean(1.0 + each.median for each in losses) - 1.0,
        **{f"{name}_{verdict}": verdicts[verdict] for verdict in ("slower", "tie", "faster")},
    }


def _regret(name: str, secs: Mapping[str, Sequence[float]]) -> float:
    return max(ratio(secs[name], found, interleaved=True) for found in secs.values()) - 1.0


def _other(share: str) -> str:
    (other,) = (each for each in SHARES if each != share)
    return other


def model_cases(run: Mapping[str, Any]) -> list[Case]:
    """Of one model and seed: the model at each share."""
    return [(share, run["model"][share]) for share in SHARES]


def operator_cases(run: Mapping[str, Any], part: float = 0.0) -> list[Case]:
    """Of one model and seed: every operator at each share where it takes at least this part of the model's time.

    Failures are left out.
    """
    model_s = {share: statistics.median(run["model"][share][share]) for share in SHARES}
    found = [(share, table[share]) for table in run["operators"].values() for share in SHARES]
    finite = [(share, secs) for share, secs in found if all(math.isfinite(x) for each in secs.values() for x in each)]
    return [(share, secs) for share, secs in finite if statistics.median(secs[share]) >= part * model_s[share]]


def _print_model(name: str, seed: int, run: Mapping[str, Any]) -> None:
    print(f"{name}, seed {seed}{'served at':>14}" + "".join(f"{share:>22}" for share in SHARES))
    for finalist in run["model"][SHARES[0]]:
        cells = []
        for share in SHARES:
            secs = run["model"][share]
            lost = slowdown(secs[finalist], secs[share], interleaved=True)
            text = "" if finalist == share else f" {lost.median:+.0%} +-{lost.margin:.0%}"
            cells.append(f"{statistics.median(secs[finalist]) * 1e3:.3f} ms{text}")
        print(f"  {finalist:<24}" + "".join(f"{cell:>24}" for cell in cells))
    if run["difference_to_reference"]:
        worst = max(found for each in run["difference_to_reference"].values() for found in each.values())
        print(f"  outputs: at most {worst:.1e} of the largest value from ONNX's reference evaluator")


def _print_summary(title: str, found: Mapping[str, Any]) -> None:
    print(f"{title}: {found['cases']} cases (x share)")
    for name, what in (("other", "tuned at the other share"), ("joint", "tuned at both at once")):
        counts = ", ".join(f"{found[f'{name}_{verdict}']} {verdict}" for verdict in ("slower", "tie", "faster"))
        print(f"  {what}, against tuned here: {found[f'{name}_mean']:+.1%} in the mean; {counts}")


def _verdict(summary: Mapping[str, Mapping[str, Any]]) -> str:
    model = summary["model"]
    which = next((name for name in ("heavy operators", "operators") if name in summary), "model")
    operators = summary[which]
    return (
        f"share_matrix: served at a share, the other share's schedules lose {model['other_mean']:.1%} (models) and "
        f"{operators['other_mean']:.1%} ({which}, {operators['other_slower']} of {operators['cases']} beyond "
        f"noise); worst regret of the robust pick {model['robust_worst']:.1%} (aim {ROBUST_BAR:.0%}), over the fastest "
        f"of all searches {model['robust_of_all_worst']:.1%}"
    )


if __name__ == "__main__":
    main()
