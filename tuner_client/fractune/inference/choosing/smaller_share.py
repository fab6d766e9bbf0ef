"""A model at a larger CPU share than it was tuned for: it runs as at a smaller one, on a part of the cores."""

from __future__ import annotations

import math

from fractune.inference.choosing.measured import measured_choice
from fractune.inference.choosing.one_thread import one_thread_choice
from fractune.inference.choosing.variants import VariantChoice, choose_variant
from fractune_core.analysis.cpu_limits.limits import threads_text
from fractune_core.analysis.match import How, Policy
from fractune_core.files.bundles import Bundle
from fractune_core.served import ServiceGoal
from fractune_core.share_kinds import CPU, kind_of
from fractune_core.shares import units_text


def smaller_share_choice(
    bundle: Bundle, units: int, choice: VariantChoice, policy: Policy, mechanism: str, goal: ServiceGoal
) -> tuple[VariantChoice, int] | None:
    """The choice of the largest smaller share for which a tuned variant is known to be the best, and the number of its
    threads there. The times of that share hold, because its cores are a part of these `units`. None if `choice` is
    better founded, or no smaller share has such a variant.
    """
    is_cpu = kind_of(mechanism).device_kind == CPU
    if not (choice.is_last_resort and is_cpu and policy.allows(How.NEAR)):
        return None
    for smaller in sorted({each for each in bundle.units(mechanism).values() if each < units}, reverse=True):
        found = choose_variant(bundle, smaller, policy, mechanism)
        if not found.exact:
            continue
        alone = one_thread_choice(bundle, smaller, found, policy, mechanism)
        measured = measured_choice(bundle, smaller, mechanism, goal)
        found, threads = measured or ((alone, 1) if alone else (found, smaller))
        here, there = (units_text(each, kind_of(mechanism).unit) for each in (units, smaller))
        reason = (
            f"{found.reason}; nothing was tuned or timed for {here}, so it runs as on {there}, with "
            f"{threads_text(threads)}; to get a faster variant, tune the model for {mechanism}:{units}"
        )
        return VariantChoice(found.variant, How.NEAR, math.nan, reason), threads
    return None
