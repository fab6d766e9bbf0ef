"""Plans against published deployments, and layouts of one GPU against the best that published tables allow.

Nothing runs on a GPU, and only the solver is timed: devices and units are counted. The rates, the latency targets and
the times of every model are ParvaGPU's and MISO's (tests/assets/published).

1. Fleets: the six sets of ParvaGPU, by its own rule for latencies, with 0 and 5 % headroom; both the published
   deployment and ours simulated at the stated rates.
2. One GPU: mixes of 2, 3 and 4 jobs. Their times at 1, 3 and 7 slices are known, those at 2 and 4 are predicted. All
   five judge the chosen layout. The comparison is the guess that speed is in proportion to slices.

Usage: python -m benchmarks.plan [--quick] [--out FILE] [--mixes N] [--seed N] [--picture FILE.svg]
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.machine import arguments, write_result
from benchmarks.support.published import (
    PUBLISHED_GPUS,
    SETS,
    SLICES,
    Curve,
    miso_curves,
    overlaps,
    parvagpu_curves,
    parvagpu_deployments,
    parvagpu_request,
    published_plan,
)
from fractune.features.plan.table import draw_plan
from fractune_core.planning.devices import Partitioning, gpu_type
from fractune_core.planning.planner import make_plan
from fractune_core.planning.plans import ModelDemand, Plan, PlanRequest, simulate
from fractune_core.planning.speeds import ModelSpeeds, Row

SEEN = (1, 3, 7)
"""slices with times that a prediction knows"""
HEADROOMS = (0.0, 0.05)
BATCHES = (8, 32)
GPUS_BAR = sum(PUBLISHED_GPUS.values())
SOLVE_BAR_S = 1.0
ERROR_BAR = 0.04
REGRET_BAR = 0.05
DRAWN_SET = 3
_SOLVES = 3
"""of each set; the median counts"""

Rows = tuple[Row, ...]
Curves = Mapping[str, Curve]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mixes", type=int, default=1000, help="of each number of jobs and each table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help=f"draw our plan of set {DRAWN_SET}")
    args = parser.parse_args()
    if args.picture is not None:
        draw_plan(make_plan(parvagpu_request(DRAWN_SET)), args.picture)
    fleets = [fleet_result(number) for number in (SETS[:2] if args.quick else SETS)]
    mixes = list(mix_results(20 if args.quick else args.mixes, args.seed))
    wrong = [overlaps([each.placed for each in gpu]) for gpus in parvagpu_deployments().values() for gpu in gpus]
    data = {
        "fleets": fleets,
        "mixes": mixes,
        "published_gpus_with_overlaps": sum(map(bool, wrong)),
        "published_gpus": len(wrong),
        "seen_slices": SEEN,
        "bars": {"gpus": GPUS_BAR, "solve_s": SOLVE_BAR_S, "stp_error": ERROR_BAR, "p95_regret": REGRET_BAR},
    }
    write_result("plan", args, data)
    print_fleets(fleets)
    print_mixes(mixes)
    print(f"published placements overlap on {data['published_gpus_with_overlaps']} of {len(wrong)} GPUs")
    gpus, slowest = sum(each["gpus"] for each in fleets), max(each["solve_s"] for each in fleets)
    error, regret = (max(each["predicted"][name] for each in mixes) for name in ("stp_error", "p95_regret"))
    print(
        f"plan: {gpus} GPUs (bar {sum(each['published_gpus'] for each in fleets)}), solved in {slowest:.2f} s at most "
        f"(bar {SOLVE_BAR_S:g}); STP error {error:.3f} (bar {ERROR_BAR:g}), p95 regret {regret:.3f} "
        f"(bar {REGRET_BAR:g})"
    )


# ---- fleets ----------------------------------------------------------------------------------------------


def fleet_result(number: int) -> dict[str, Any]:
    """A set of ParvaGPU: published, ours, ours with headroom."""
    request = parvagpu_request(number)
    solved = {headroom: solve_often(parvagpu_request(number, headroom)) for headroom in HEADROOMS}
    ours, roomy = (solved[headroom].plan for headroom in HEADROOMS)
    published = published_plan(number, request)
    enough = make_plan(request, simulated=True)
    return {
        "set": number,
        "models": len(request.models),
        "published_gpus": len(published.devices),
        "published_slices": published.units_used,
        "published_late": late(published),
        "gpus": len(ours.devices),
        "slices": ours.units_used,
        "late": late(ours),
        "highest_use": max(model.utilisation or 0.0 for model in ours.models),
        "proved": ours.is_proved and roomy.is_proved,
        "gpus_with_headroom": len(roomy.devices),
        "slices_with_headroom": roomy.units_used,
        "late_with_headroom": late(roomy),
        "solve_s": solved[0.0].wall_s,
        "solve_cpu_s": solved[0.0].cpu_s,
        "solve_with_headroom_s": solved[HEADROOMS[1]].wall_s,
        "solve_with_headroom_cpu_s": solved[HEADROOMS[1]].cpu_s,
        "p99_holds_with_headroom": enough.headroom,
        "p99_holds_with_gpus": len(enough.devices),
    }


@dataclass(frozen=True)
class Solved:
    """A plan made _SOLVES times over: medians."""

    plan: Plan
    wall_s: float
    cpu_s: float
    """of this process, with the little that is not the solver's: what a machine without other work would need"""


def solve_often(request: PlanRequest) -> Solved:
    plans, cpu_s = [], []
    for _ in range(_SOLVES):
        began = time.process_time()
        plans.append(make_plan(request))
        cpu_s.append(time.process_time() - began)
    return Solved(plans[0], statistics.median(plan.solve_s for plan in plans), statistics.median(cpu_s))


def late(plan: Plan) -> float:
    """Simulated: the part of all requests that come late, each model by its rate."""
    rates = {model.name: model.rate_per_s or 0.0 for model in plan.models}
    return sum(each.late * rates[each.name] for each in simulate(plan)) / sum(rates.values())


def print_fleets(fleets: Sequence[Mapping[str, Any]]) -> None:
    print("set  GPUs published  ours  +5 %   slices published  ours  +5 %   solve s  CPU s", end="   ")
    print("late (simulated) published   ours   +5 %  p99 holds with")
    for each in fleets:
        print(
            f"{each['set']:>3}  {each['published_gpus']:>14}  {each['gpus']:>4}  {each['gpus_with_headroom']:>4}"
            f"   {each['published_slices']:>16}  {each['slices']:>4}  {each['slices_with_headroom']:>4}"
            f"   {each['solve_s']:>7.2f}  {each['solve_cpu_s']:>5.2f}"
            f"   {each['published_late']:>26.1%}  {each['late']:>5.1%}  {each['late_with_headroom']:>5.1%}"
            f"  {each['p99_holds_with_headroom']:>6.0%}, {each['p99_holds_with_gpus']} GPUs"
        )


# ---- one GPU ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A mix of jobs, and what a guess of their times made of it."""

    guessed_stp: float
    achieved_stp: float
    best_stp: float


def mix_results(mixes: int, seed: int) -> Iterator[dict[str, Any]]:
    """Of each table and each number of jobs."""
    tables = {
        "MISO (training)": miso_curves(),
        **{f"ParvaGPU (inference, batch {batch})": parvagpu_curves([batch]) for batch in BATCHES},
    }
    for table, curves in tables.items():
        for count in (2, 3, 4):
            draws = random.Random(f"{seed} {count}")
            drawn = [[draws.choice(sorted(curves)) for _ in range(count)] for _ in range(mixes)]
            yield {
                "table": table,
                "curves": len(curves),
                "jobs": count,
                "mixes": mixes,
                "predicted": judge(curves, drawn, predicted_rows),
                "in_proportion": judge(curves, drawn, proportional_rows),
            }


def judge(curves: Curves, mixes: Sequence[Sequence[str]], guess: Callable[[Curve], Rows]) -> dict[str, float]:
    """The distance between the STP that a guess promises and the STP of its layout, and its loss to the best layout."""
    guessed, true = ({name: rows(curve) for name, curve in curves.items()} for rows in (guess, true_rows))
    judged = [judge_mix(curves, mix, guessed, true) for mix in mixes]
    errors = [abs(each.guessed_stp / each.achieved_stp - 1) for each in judged]
    regrets = sorted(1 - each.achieved_stp / each.best_stp for each in judged)
    return {
        "guessed_stp": statistics.fmean(each.guessed_stp for each in judged),
        "achieved_stp": statistics.fmean(each.achieved_stp for each in judged),
        "best_stp": statistics.fmean(each.best_stp for each in judged),
        "stp_error": statistics.fmean(errors),
        "mean_regret": statistics.fmean(regrets),
        "p95_regret": regrets[int(0.95 * len(regrets))],
    }


def judge_mix(curves: Curves, mix: Sequence[str], guessed: Mapping[str, Rows], true: Mapping[str, Rows]) -> Judged:
    chosen, best = plan_of(mix, guessed), plan_of(mix, true)
    slices = {part.model: part.units for part in chosen.devices[0]}
    achieved = sum(curves[name][7] / curves[name][slices[job(at, name)]] for at, name in enumerate(mix))
    return Judged(chosen.stp or 0.0, achieved, best.stp or 0.0)


def plan_of(mix: Sequence[str], rows: Mapping[str, Rows]) -> Plan:
    models = tuple(ModelDemand(job(at, name), rows[name]) for at, name in enumerate(mix))
    return make_plan(PlanRequest(gpu_type("A100-80GB", Partitioning.MIG), models))


def job(at: int, name: str) -> str:
    return f"{at} {name}"


def true_rows(curve: Curve) -> Rows:
    return tuple(Row(units, 1, 1, 1 / secs, secs) for units, secs in curve.items())


def predicted_rows(curve: Curve) -> Rows:
    """The prediction of a plan where only SEEN were measured."""
    speeds = ModelSpeeds(true_rows({units: curve[units] for units in SEEN}))
    return tuple(row for units in SLICES for row in speeds.at(units))


def proportional_rows(curve: Curve) -> Rows:
    """The blind guess, from the whole GPU."""
    return true_rows({units: curve[7] * 7 / units for units in SLICES})


def print_mixes(mixes: Sequence[Mapping[str, Any]]) -> None:
    predicted = "STP predicted  achieved  best   error  p95 regret"
    print(f"table                             jobs  {predicted}   in proportion: error  p95 regret")
    for each in mixes:
        ours, blind = each["predicted"], each["in_proportion"]
        print(
            f"{each['table']:<32}  {each['jobs']:>4}  {ours['guessed_stp']:>13.2f}  {ours['achieved_stp']:>8.2f}"
            f"  {ours['best_stp']:>4.2f}  {ours['stp_error']:>6.1%}  {ours['p95_regret']:>10.1%}"
            f"   {blind['stp_error']:>20.1%}  {blind['p95_regret']:>10.1%}"
        )


if __name__ == "__main__":
    main()
