"""The incumbents of both sides, measured again: interleaved in one session, each candidate with its own workload.

A side's candidates belong to its workload in an operator's place; the other side's workload there may differ.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.support.interleaved import interleaved_secs_of, open_session
from benchmarks.support.models import Operator
from benchmarks.support.trajectory import Trial, first_held, held_curve, incumbents

NEAR = 1.02
"""a latency within 2 % of a goal is near it"""

Again = Mapping[str, Mapping[str, Mapping[str, float]]]
"""seconds by our operator's workload hash, side and trace; infinite for what fails or gives wrong output"""


def measured_again(
    matches: Sequence[Mapping[str, Operator]],
    final: Mapping[str, Mapping[str, str]],
    sides: Mapping[str, Sequence[Trial]],
    target: str,
    share: str,
) -> Again:
    """Seconds of the sides' results (`final`, traces by workload hash), and of every incumbent of each side.

    A match has by side its tuned operator in one place; `final` and the trials name the operator by our workload hash.
    """
    session, cores = open_session(share)
    times: dict[str, dict[str, dict[str, float]]] = {}
    try:
        for match in matches:
            name = match["ours"].workload_hash
            finalists: dict[Operator, dict[tuple[str, str], str]] = {}
            for side, operator in match.items():
                traces = {trial.trace for trial in incumbents(sides[side]) if trial.operator == name}
                traces |= {final[side][name]} if name in final[side] else set()
                finalists.setdefault(operator, {}).update({(side, trace): trace for trace in sorted(traces)})
            times[name] = {side: {} for side in match}
            for (side, trace), secs in interleaved_secs_of(finalists, target, session, cores).items():
                times[name][side][trace] = statistics.median(secs)
    finally:
        session.stop()
    return times


def reached(
    sides: Mapping[str, Sequence[Trial]], weights: Mapping[str, int], again: Again
) -> dict[str, dict[str, float]]:
    """Seconds until each side first held what stock ends with (`quality`), and 1.02 times that (`near`)."""
    curves = {
        side: held_curve([replace(t, secs=again[t.operator][side][t.trace]) for t in incumbents(trials)], weights)
        for side, trials in sides.items()
    }
    goal_s = curves["stock"][-1][1] if curves["stock"] else math.nan
    return {
        name: {side: first_held(curve, factor * goal_s) for side, curve in curves.items()}
        for name, factor in (("quality", 1.0), ("near", NEAR))
    }
