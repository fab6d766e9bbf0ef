"""The choice of a bundle's variant for a share, with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fractune_core.analysis.match import DEFAULT_POLICY, How, Policy, choose
from fractune_core.files.bundles import Bundle
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.share_kinds import CPU, kind_of
from fractune_core.shares import units_text


@dataclass(frozen=True)
class VariantChoice:
    """The answer: a variant, its kind of match with the share, and the measured loss."""

    variant: str
    how: How
    regret: float
    """worst relative loss against the best known at the shares considered; not a number = not measured"""
    reason: str

    @property
    def exact(self) -> bool:
        """tuned or measured at exactly the number of units here"""
        return self.how is How.EXACT

    @property
    def is_last_resort(self) -> bool:
        """the untuned variant, and not because it was measured to be the fastest: nothing tuned fits"""
        return self.variant == UNTUNED_VARIANT and math.isnan(self.regret)


def choose_variant(
    bundle: Bundle, units: int, policy: Policy = DEFAULT_POLICY, mechanism: str = "cpu"
) -> VariantChoice:
    """The variant for a share of `units` units by `mechanism`; times under another mechanism do not apply here.

    First comes the variant tuned at just as many units, if none is known to be faster there. Then the measurements
    decide (`fractune_core.analysis.match.choose`). Without an answer it is the variant tuned at just as many units;
    with `policy.allow_unmeasured` the one tuned at the nearest number by ratio; else the untuned one.
    """
    unit = kind_of(mechanism).unit
    tuned, measured = _tuned_units(bundle, mechanism), bundle.choosing(mechanism)
    row = measured.get(units, {})
    own = next((name for name, at in tuned.items() if at == units and name in row), None)
    if own is not None and row[own] <= min(row.values()):
        reason = f"it was tuned for {units_text(units, unit)}, and no other variant was faster there"
        return VariantChoice(own, How.EXACT, 0.0, reason)
    choice = choose(measured, units, UNTUNED_VARIANT, policy, unit, reported=bundle.measured(mechanism))
    if choice.name is not None:
        return VariantChoice(choice.name, choice.how, choice.regret, choice.reason)
    if units in measured:
        return VariantChoice(UNTUNED_VARIANT, choice.how, choice.regret, choice.reason)
    same = [name for name, at in tuned.items() if at == units]
    if same:
        reason = f"it was tuned for {units_text(units, unit)}; the bundle has no times of other variants there"
        return VariantChoice(same[0], How.EXACT, math.nan, reason)
    others = _tuned_units(bundle)
    why = choice.reason
    if others and not tuned:
        why = f"the bundle has no variant for a share of the kind '{mechanism}', only for {', '.join(others)}"
    return _unmeasured(tuned or others, units, mechanism, why, policy)


def _tuned_units(bundle: Bundle, mechanism: str | None = None) -> dict[str, int]:
    """Units by variant, of the variants that were tuned at one share, of that mechanism or of any."""
    shares = bundle.manifest["shares"] if mechanism is None else bundle.units(mechanism)
    names = [variant["name"] for variant in bundle.variants if variant["name"] in shares]
    return {name: int(bundle.manifest["shares"][name]["units"]) for name in names}


def _unmeasured(tuned: dict[str, int], units: int, mechanism: str, why: str, policy: Policy) -> VariantChoice:
    unit = kind_of(mechanism).unit
    if tuned and policy.allow_unmeasured:
        nearest = min(tuned, key=lambda name: (max(tuned[name] / units, units / tuned[name]), tuned[name]))
        reason = (
            f"it was tuned for {units_text(tuned[nearest], unit)}, the nearest share; its speed here was never measured"
        )
        return VariantChoice(nearest, How.NEAR, math.nan, reason)
    why = why if tuned else "the bundle has no variant for a single share"
    best = f"{mechanism}:{units}" if kind_of(mechanism).device_kind == CPU else units_text(units, unit)
    return VariantChoice(
        UNTUNED_VARIANT, How.NONE, math.nan, f"{why}; to get a faster variant, tune the model for {best}"
    )
