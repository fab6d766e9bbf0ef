"""The variant and the threads that were the best when the model was timed under the very limit of this process."""

from __future__ import annotations

from fractune.inference.choosing.measured import times_text
from fractune.inference.choosing.under_limit import limit_text
from fractune.inference.choosing.variants import VariantChoice
from fractune.inference.cpu import ShareHere
from fractune_core.analysis.cpu_limits.limits import threads_text
from fractune_core.analysis.match import How
from fractune_core.cpu_limits import GrantedLimit
from fractune_core.files.bundles import Bundle
from fractune_core.host.cgroups import Quota
from fractune_core.served import ServiceGoal


def timed_choice(bundle: Bundle, here: ShareHere, quota: Quota, goal: ServiceGoal) -> tuple[VariantChoice, int] | None:
    """None where the bundle was not timed under this limit, or with more threads than this process has CPUs."""
    for limit, served in bundle.under_limits:
        best = served[goal]
        if _is_same(limit, quota) and best.threads <= len(here.cpus):
            at = f"under a limit of {limit_text(quota)}"
            reason = f"no faster variant was timed {at}: with {threads_text(best.threads)} it takes"
            return VariantChoice(best.variant, How.EXACT, 0.0, f"{reason} {times_text(best, goal)}"), best.threads
    return None


def _is_same(limit: GrantedLimit, quota: Quota) -> bool:
    here = (quota.millicores, quota.period_us, quota.burst_us)
    return (limit.quota_m, limit.period_us, limit.burst_us) == here
