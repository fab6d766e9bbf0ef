"""The alternatives of a goal as a table and as JSON. Every latency in them is predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from fractune.features.fit.measuring import Measured, service_for, service_json
from fractune.features.fit.verifying import Verified
from fractune.text.rendering import Column, Table
from fractune.text.text import percent_text, time_text
from fractune_core.analysis.cpu_limits.fitting import Alternative, Goal
from fractune_core.analysis.cpu_limits.limits import threads_text
from fractune_core.cpu_limits import MILLICORES

_DISTURBED_CORES = 0.1
"""of other programs, from which on a verified limit gets a note"""


def fit_table(
    name: str, measured: Measured, goal: Goal, alternatives: Sequence[Alternative], best: Alternative
) -> Table:
    """A row for each alternative; `rows` as the `alternatives` of the JSON."""
    return Table(
        title=f"{name}{runtime_text(measured)}: {goal_text(goal)}, predicted on {goal.cores_text}",
        columns=(
            *(Column("limit", numbers=True), Column("replicas", numbers=True), Column("threads each", numbers=True)),
            Column("burst", numbers=True, dispensable=3),
            *(Column(f"predicted {which}", numbers=True) for which in ("p50", "p99")),
            Column("p99 with margin", numbers=True, dispensable=1),
            Column("utilisation", numbers=True, dispensable=2),
            Column("stopped", numbers=True, dispensable=4),
        ),
        cells=tuple(_cells(each, measured, goal) for each in alternatives),
        rows=tuple(_alternative_json(each, measured, goal) for each in alternatives),
        notes=tuple(_sentences(measured, goal, alternatives, best)),
    )


def fit_json(
    name: str, measured: Measured, goal: Goal, alternatives: Sequence[Alternative], best: Alternative
) -> dict[str, Any]:
    """Times in seconds, limits in thousandths of a core."""
    return {
        "event": "fit",
        "model": name,
        "runtime": measured.runtime,
        "version": measured.version,
        "goal": asdict(goal),
        "best": _alternative_json(best, measured, goal),
        "alternatives": [_alternative_json(each, measured, goal) for each in alternatives],
        "measured": [service_json(each) for each in measured.services],
        "doubts": measured.doubts or None,
    }


def verified_lines(best: Alternative, goal: Goal, verified: Verified) -> Iterator[str]:
    """The verdict and the measured latencies, then the predicted ones; a note where other programs were busy."""
    p99, low, high, p50 = map(time_text, (verified.p99_s, verified.p99_low_s, verified.p99_high_s, verified.p50_s))
    is_disturbed = verified.other_cores > _DISTURBED_CORES
    verb = "keeps" if verified.held else "is not known to keep" if is_disturbed else "does not keep"
    yield (
        f"{best.name} {verb} the p99 of {time_text(goal.p99_s)} under the real"
        f" limit: p99 {p99} ({low} .. {high}), p50 {p50}, of {verified.requests:,} requests"
    )
    p99, p50 = map(time_text, (verified.predicted_p99_s, verified.predicted_p50_s))
    yield f"predicted for the same arrivals: p99 {p99}, p50 {p50}"
    if is_disturbed:
        yield (
            f"note: other programs used {verified.other_cores:.1f} cores meanwhile, so latencies are too high; verify"
            " again on an idle machine"
        )


def goal_text(goal: Goal) -> str:
    return f"{goal.rate_per_s:g}/s with p99 at most {time_text(goal.p99_s)}"


def runtime_text(measured: Measured) -> str:
    """` in ONNX Runtime 1.31.1`; empty for a bundle."""
    return f" in {measured.runtime} {measured.version}" if measured.version else ""


def _utilisation(each: Alternative, measured: Measured, goal: Goal) -> float:
    """CPU time of the requests over what the limit allows."""
    return goal.rate_per_s * service_for(measured, each.threads).cpu_s * MILLICORES / each.limit.quota_m


def _cells(each: Alternative, measured: Measured, goal: Goal) -> tuple[str, ...]:
    found = each.prediction
    return (
        f"{each.limit.quota_m}m",
        str(each.replicas),
        str(each.threads),
        time_text(each.limit.burst_us / 1e6) if each.limit.burst_us else "none",
        *(time_text(secs) for secs in (found.p50_s, found.p99_s, each.safe_p99_s)),
        percent_text(_utilisation(each, measured, goal)),
        percent_text(found.stopped),
    )


def _alternative_json(each: Alternative, measured: Measured, goal: Goal) -> dict[str, Any]:
    return {
        "limit_m": each.limit.quota_m,
        "replicas": each.replicas,
        "threads": each.threads,
        "burst_us": each.limit.burst_us,
        "period_us": each.limit.period_us,
        "utilisation": _utilisation(each, measured, goal),
        "predicted": asdict(each.prediction),
        "safe_p99_s": each.safe_p99_s,
    }


def _sentences(measured: Measured, goal: Goal, alternatives: Sequence[Alternative], best: Alternative) -> Iterator[str]:
    times = "; ".join(
        f"{threads_text(each.threads)} {time_text(each.mean_s)} (CPU time {time_text(each.cpu_s)})"
        for each in measured.services
    )
    yield f"measured without a limit, mean of an inference in a loop: {times}"
    kept = {each.threads for each in alternatives}
    if lost := [threads_text(each.threads) for each in measured.services if each.threads not in kept]:
        yield f"no limit keeps the p99 with {' or '.join(lost)}"
    yield (
        f"utilisation: the part of the limit that requests use; stopped: the part of the time in which the limit stops"
        f" the model. With margin: the worst of five runs of inferences that take {goal.margin:.0%} longer; it decides"
    )
    if best.limit.burst_us == 0 and any(each.limit.quota_m < best.limit.quota_m for each in alternatives):
        yield "Kubernetes sets no burst, so the block below takes the smallest limit without one"
    if measured.doubts:
        yield f"note: {measured.doubts}"
