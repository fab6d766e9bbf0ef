"""Which variant of a bundle to run at a share, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner_core.bundles import UNTUNED_VARIANT, Bundle
from tuner_core.match import DEFAULT_POLICY, How, Policy, choose
from tuner_core.shares import units_text

_UNIT = "core"
"""of the only devices that bundles are run on so far"""


@dataclass(frozen=True)
class VariantChoice:
    """The answer: a variant, how it was matched with the share, and what that costs as far as measured."""

    variant: str
    how: How
    regret: float
    """worst relative loss against the best known at the shares that were looked at; not a number = not measured"""
    reason: str

    @property
    def exact(self) -> bool:
        """tuned or measured at just as many units as there are here"""
        return self.how is How.EXACT


def choose_variant(bundle: Bundle, units: int, policy: Policy = DEFAULT_POLICY) -> VariantChoice:
    """The variant for a share of `units` units.

    The variant tuned at just as many units where none is known to be faster there. Else by what was measured
    (`tuner_core.match.choose`). Where that has no answer: the variant tuned at just as many units; with
    `policy.allow_unmeasured` the one tuned at the nearest number by ratio; else the untuned one.
    """
    row = bundle.measured.get(units, {})
    own = next((name for name, tuned in _tuned_units(bundle).items() if tuned == units and name in row), None)
    if own is not None and row[own] <= min(row.values()):
        reason = f"tuned at {units_text(units, _UNIT)}, and none is known to be faster there"
        return VariantChoice(own, How.EXACT, 0.0, reason)
    choice = choose(bundle.measured, units, UNTUNED_VARIANT, policy, _UNIT)
    if choice.name is not None:
        return VariantChoice(choice.name, choice.how, choice.regret, choice.reason)
    if units in bundle.measured:
        return VariantChoice(UNTUNED_VARIANT, choice.how, choice.regret, choice.reason)
    return _unmeasured(_tuned_units(bundle), units, choice.reason, policy)


def _tuned_units(bundle: Bundle) -> dict[str, int]:
    """Units by variant, of those that were tuned at one share."""
    shares = bundle.manifest["shares"]
    names = [variant["name"] for variant in bundle.variants]
    return {name: int(shares[name]["units"]) for name in names if name in shares}


def _unmeasured(tuned: dict[str, int], units: int, why: str, policy: Policy) -> VariantChoice:
    if not tuned:
        return VariantChoice(UNTUNED_VARIANT, How.NONE, 0.0, "the bundle holds no variant that was tuned at one share")
    nearest = min(tuned, key=lambda name: (max(tuned[name] / units, units / tuned[name]), tuned[name]))
    if tuned[nearest] == units:
        reason = f"tuned at {units_text(units, _UNIT)}; the bundle says of no other variant how fast it is there"
        return VariantChoice(nearest, How.EXACT, math.nan, reason)
    if policy.allow_unmeasured:
        reason = f"tuned at {units_text(tuned[nearest], _UNIT)}, the nearest; what it loses here was never measured"
        return VariantChoice(nearest, How.NEAR, math.nan, reason)
    return VariantChoice(UNTUNED_VARIANT, How.NONE, 0.0, f"{why}; best is to tune at {units_text(units, _UNIT)}")
