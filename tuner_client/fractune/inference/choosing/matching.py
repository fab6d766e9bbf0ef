"""The variant and the threads for the share of a process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fractune.inference.choosing.measured import measured_choice
from fractune.inference.choosing.one_thread import one_thread_choice
from fractune.inference.choosing.requested_threads import choice_for_threads
from fractune.inference.choosing.smaller_share import smaller_share_choice
from fractune.inference.choosing.timed_limit import timed_choice
from fractune.inference.choosing.under_limit import choose_under_limit, limit_text
from fractune.inference.choosing.variants import VariantChoice, choose_variant
from fractune.inference.cpu import ShareHere
from fractune_core.analysis.match import Policy
from fractune_core.files.bundles import Bundle
from fractune_core.served import ServiceGoal
from fractune_core.shares import units_text


@dataclass(frozen=True)
class Matched:
    """What a model runs, and with what."""

    choice: VariantChoice
    share: ShareHere
    """under a CPU limit its units are the threads that were chosen"""
    threads: int


def match_share(
    bundle: Bundle, here: ShareHere, policy: Policy, goal: ServiceGoal, threads: int | None = None
) -> Matched:
    """With `threads` the variant for as many cores. Under a CPU limit the best that was timed there, else the predicted
    best. Without a time for a prediction, and elsewhere, the variant for the share's units.
    """
    if threads is not None:
        choice = choice_for_threads(bundle, here, policy, threads)
        return Matched(choice, replace(here, units=threads), threads)
    limited = None
    if here.quota:
        limited = timed_choice(bundle, here, here.quota, goal)
        limited = limited or choose_under_limit(bundle, here, here.quota, policy, goal)
    if limited is not None:
        choice, threads = limited
        return Matched(choice, replace(here, units=threads), threads)
    choice, threads = _at_units(bundle, here, policy, goal)
    if here.quota is not None:
        counted = f"the limit of {limit_text(here.quota)} counts as {units_text(here.units, here.unit)}"
        reason = f"{choice.reason}; {counted}, because the bundle has no times to predict its effect"
        choice = replace(choice, reason=reason)
    return Matched(choice, here, threads)


def _at_units(bundle: Bundle, here: ShareHere, policy: Policy, goal: ServiceGoal) -> tuple[VariantChoice, int]:
    """The best of the whole model's times at so many units; without them, the best of its operators' times."""
    # Times of the whole model were measured without a quota.
    measured = None if here.quota else measured_choice(bundle, here.units, here.mechanism, goal)
    if measured is not None:
        return measured
    choice = choose_variant(bundle, here.units, policy, here.mechanism)
    smaller = smaller_share_choice(bundle, here.units, choice, policy, here.mechanism, goal)
    if smaller is not None:
        return smaller
    alone = one_thread_choice(bundle, here.units, choice, policy, here.mechanism)
    return (alone, 1) if alone else (choice, here.threads)
