"""Predicted p99 by limit, by matplotlib: a line for each number of threads and replicas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from fractune.features.fit.measuring import Measured, service_for
from fractune.features.fit.table import goal_text, runtime_text
from fractune.features.fit.verifying import Verified
from fractune.text.figure import save_figure
from fractune.text.text import common_unit
from fractune_core.analysis.cpu_limits.fitting import Alternative, Goal
from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service, capacity_per_s, least_quota_m, threads_text
from fractune_core.analysis.cpu_limits.prediction import predict
from fractune_core.cpu_limits import MILLICORES

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
