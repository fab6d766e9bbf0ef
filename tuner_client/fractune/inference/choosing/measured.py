"""The variant and the threads by measurements of the whole model at the share."""

from __future__ import annotations

from fractune.inference.choosing.variants import VariantChoice
from fractune_core.analysis.cpu_limits.limits import threads_text
from fractune_core.analysis.match import How
from fractune_core.files.bundles import Bundle
from fractune_core.served import LOAD_TEXT, Served, ServiceGoal
from fractune_core.share_kinds import kind_of
from fractune_core.shares import units_text


def measured_choice(bundle: Bundle, units: int, mechanism: str, goal: ServiceGoal) -> tuple[VariantChoice, int] | None:
    """The best variant at so many units for the goal, and its number of threads. None where the bundle has none."""
    best = bundle.served(mechanism).get(units, {}).get(goal)
    if best is None:
        return None
    at = units_text(units, kind_of(mechanism).unit)
    reason = f"no faster variant was timed at {at}: with {threads_text(best.threads)} it takes"
    return VariantChoice(best.variant, How.EXACT, 0.0, f"{reason} {times_text(best, goal)}"), best.threads


def times_text(best: Served, goal: ServiceGoal) -> str:
    """`p50 9.7 ms, p99 25.5 ms at 30 % load`, or `9.6 ms in a loop`."""
    p99 = "" if best.p99_s is None else f", p99 {_ms(best.p99_s)}"
    return f"p50 {_ms(best.p50_s)}{p99} at {LOAD_TEXT}" if goal == "latency" else f"{_ms(best.loop_s)} in a loop"


def _ms(secs: float) -> str:
    return f"{secs * 1e3:.3g} ms"
