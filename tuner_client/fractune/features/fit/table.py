"""The alternatives of a goal as a table and as JSON. Every latency in them is predicted."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fractune.features.fit.measuring import BehindServer, Measured, Verified, service_for, service_json
from fractune.text.rendering import Column, Table, save_figure
from fractune.text.text import common_unit, marked_time, percent_text, time_text
from fractune_core.analysis.limit_fitting import Alternative, Goal
from fractune_core.analysis.limit_prediction import predict
from fractune_core.cpu_limits import MILLICORES, CpuLimit, Service, capacity_per_s, least_quota_m, threads_text
from fractune_core.served import is_disturbed


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
    disturbed = is_disturbed(verified.other_cores)
    verb = "keeps" if verified.held else "is not known to keep" if disturbed else "does not keep"
    yield (
        f"{best.name} {verb} the p99 of {time_text(goal.p99_s)} under the real"
        f" limit: p99 {p99} ({low} .. {high}), p50 {p50}, of {verified.requests:,} requests"
    )
    p99, p50 = map(time_text, (verified.predicted_p99_s, verified.predicted_p50_s))
    yield f"predicted for the same arrivals: p99 {p99}, p50 {p50}"
    if disturbed:
        yield _disturbed_note(verified.other_cores)


def behind_lines(best: Alternative, goal: Goal, behind: BehindServer, verified: Verified | None) -> Iterator[str]:
    """The verdict and the latencies behind the server, those of the model alone, and what the server costs."""
    p99, p50 = map(time_text, (behind.p99_s, behind.p50_s))
    disturbed = is_disturbed(behind.other_cores)
    verb = "keeps" if behind.held else "is not known to keep" if disturbed else "does not keep"
    yield (
        f"behind {behind.server}, {best.name} {verb} the p99 of {time_text(goal.p99_s)}: p99 {p99}, p50 {p50}, of"
        f" {behind.requests:,} requests"
    )
    alone, found = ("measured", verified) if verified else ("predicted", best.prediction)
    yield f"the model alone, {alone}: p99 {time_text(found.p99_s)}, p50 {time_text(found.p50_s)}"
    own_m = MILLICORES * goal.rate_per_s * max(0.0, behind.request_cpu_s - behind.model_cpu_s)
    yield (
        f"a request takes {time_text(behind.request_cpu_s)} of CPU time, {time_text(behind.model_cpu_s)} of it for the"
        f" model: at {goal.rate_per_s:g}/s the server itself needs {own_m:.0f}m"
    )
    if disturbed:
        yield _disturbed_note(behind.other_cores)


def _disturbed_note(other_cores: float) -> str:
    return (
        f"note: other programs used {other_cores:.1f} cores meanwhile, so latencies are too high; verify again on an"
        " idle machine"
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
    found, at_most = each.prediction, measured.is_disturbed(each.threads)
    return (
        f"{'<= ' if at_most else ''}{each.limit.quota_m}m",
        str(each.replicas),
        str(each.threads),
        time_text(each.limit.burst_us / 1e6) if each.limit.burst_us else "none",
        *(marked_time(secs, at_most=at_most) for secs in (found.p50_s, found.p99_s, each.safe_p99_s)),
        percent_text(_utilisation(each, measured, goal)),
        percent_text(found.stopped),
    )


def _alternative_json(each: Alternative, measured: Measured, goal: Goal) -> dict[str, Any]:
    return {
        "limit_m": each.limit.quota_m,
        "disturbed": measured.is_disturbed(each.threads),
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
        f"{threads_text(each.threads)} {marked_time(each.mean_s, at_most=measured.is_disturbed(each.threads))} "
        f"(CPU time {time_text(each.cpu_s)})"
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


_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "black")
"""of Okabe and Ito, which colour-blind people tell apart"""
_POINTS = 24
"""of a line at most"""
_RUNS, _REQUESTS = 3, 4_000
_MOST_LOAD = 0.95
_MOST_GOALS = 4.0
"""the highest p99 that is drawn, as a multiple of the goal"""


def draw_fit(
    name: str,
    measured: Measured,
    goal: Goal,
    alternatives: Sequence[Alternative],
    verified: tuple[Alternative, Verified] | None,
    path: Path,
) -> None:
    """Draw to `path`, with the measured p99 of an alternative that was verified. Raises StateUnusable when the file
    cannot be written.
    """
    from matplotlib.figure import Figure

    unit, scale = common_unit(goal.p99_s)
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    least = {(each.threads, each.replicas): each for each in alternatives if not each.limit.burst_us}
    drawn = sorted({*least, *((each.threads, 1) for each in measured.services)})
    for (threads, replicas), color in zip(drawn, itertools.cycle(_COLORS), strict=False):
        line = p99_by_limit(service_for(measured, threads), replicas, goal)
        label = f"{replicas} x {threads_text(threads)}"
        axes.plot(list(line), [secs * scale for secs in line.values()], color=color, linewidth=1.5, label=label)
        if found := least.get((threads, replicas)):
            at = (found.limit.quota_m, found.prediction.p99_s * scale)
            axes.scatter(*at, s=60, marker="D", facecolors="none", edgecolors=color, linewidths=1.8, zorder=4)
    if verified is not None:
        limit_m, found_s = verified[0].limit.quota_m, verified[1]
        below_s, above_s = found_s.p99_s - found_s.p99_low_s, found_s.p99_high_s - found_s.p99_s
        interval = [[below_s * scale], [above_s * scale]]
        axes.errorbar(limit_m, found_s.p99_s * scale, interval, fmt="kx", capsize=3, label="measured under the limit")
    axes.axhline(goal.p99_s * scale, color="0.35", linewidth=1, linestyle="--", label="goal")
    axes.set_ylim(0, _MOST_GOALS * goal.p99_s * scale)
    axes.set_xlim(left=0)
    axes.set_xlabel("CPU limit (thousandths of a core); diamond: the least that keeps the goal", fontsize=9)
    axes.set_ylabel(f"predicted p99 ({unit})", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    axes.set_title(f"{name}{runtime_text(measured)}: {goal_text(goal)}", fontsize=9)
    save_figure(figure, path)


def p99_by_limit(service: Service, replicas: int, goal: Goal) -> dict[int, float]:
    """Predicted p99 in seconds by limit in thousandths of a core; none nearer to the capacity than 95 %."""
    threads = service.threads * replicas
    busy_m = MILLICORES * goal.rate_per_s * service.cpu_s / _MOST_LOAD
    step_m = goal.step_m
    lowest = math.ceil(max(busy_m, least_quota_m(threads, goal.period_us)) / step_m)
    highest = max(lowest, MILLICORES * threads // step_m)
    stride = max(1, math.ceil((highest - lowest) / _POINTS))

    def predicted_s(limit: CpuLimit) -> float:
        rate_per_s, seeds = goal.rate_per_s, range(_RUNS)
        return predict(service, limit, replicas=replicas, rate_per_s=rate_per_s, requests=_REQUESTS, seeds=seeds).p99_s

    line = {}
    for steps in range(lowest, highest + 1, stride):
        limit = CpuLimit(steps * step_m, goal.period_us)
        if goal.rate_per_s <= _MOST_LOAD * capacity_per_s(service, limit, replicas):
            line[limit.quota_m] = predicted_s(limit)
    return line
