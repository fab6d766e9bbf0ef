"""Models of less than a millisecond that gain nothing from a pool: one thread runs them faster, whatever the share."""

from __future__ import annotations

from fractune.inference.choosing.variants import VariantChoice, choose_variant
from fractune_core.analysis.cpu_limits.limits import POOL_COST_S
from fractune_core.analysis.match import Policy
from fractune_core.files.bundles import Bundle
from fractune_core.share_kinds import CPU, kind_of

TINY_S = 1e-3
"""The hand-over is a small part of a longer call. There a disturbed measurement must not take the pool away"""


def one_thread_choice(
    bundle: Bundle, units: int, choice: VariantChoice, policy: Policy, mechanism: str
) -> VariantChoice | None:
    """The variant that one thread runs faster than a pool of `units` threads runs `choice`. None if no measurement
    shows one. The times are the bundle's sums of operators: at one core, or without them at most `units` times as long.
    """
    if units < 2 or kind_of(mechanism).device_kind != CPU:
        return None
    times = bundle.choosing(mechanism)
    pool_s = times.get(units, {}).get(choice.variant)
    if not pool_s or pool_s > TINY_S:
        return None
    alone = choose_variant(bundle, 1, policy, mechanism)
    alone_s, at_most = times.get(1, {}).get(alone.variant), ""
    if alone_s is None:
        alone, alone_s, at_most = choice, units * pool_s, "at most "
    if alone_s > pool_s + POOL_COST_S:
        return None
    reason = (
        f"one thread runs it, because {units} threads would gain less than the {POOL_COST_S * 1e6:.0f} us that handing "
        f"work to them costs: the model takes {at_most}{alone_s * 1e6:.4g} us on 1 core, and {pool_s * 1e6:.4g} us on "
        f"{units}"
    )
    return VariantChoice(alone.variant, alone.how, alone.regret, reason)
