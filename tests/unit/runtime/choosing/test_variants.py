"""Which variant of a bundle fits a share, by what was measured and without it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fractune_core.analysis.match import How, Policy
from fractune_core.files.bundles import Bundle
from fractune_runtime.choosing import choose_variant
from tests.support.client_samples import bundle_bytes

MEASURED = {
    "cpu:1": {"cpu:1": 1.0, "cpu:4": 1.05, "untuned": 2.0},
    "cpu:4": {"cpu:1": 0.9, "cpu:4": 0.3, "untuned": 1.0},
}
ANYTHING = Policy(allow_unmeasured=True)


def a_bundle(**changes: Any) -> Bundle:
    return Bundle(bundle_bytes(**changes))


@pytest.mark.parametrize(("units", "variant"), [(1, "cpu:1"), (4, "cpu:4")])
def test_the_fastest_at_just_this_share(units: int, variant: str) -> None:
    choice = choose_variant(a_bundle(measured=MEASURED), units)
    assert (choice.variant, choice.how, choice.regret, choice.exact) == (variant, How.EXACT, 0.0, True)


def test_of_equally_fast_ones_the_one_tuned_there() -> None:
    choice = choose_variant(a_bundle(measured={"cpu:4": {"cpu:1": 0.3, "cpu:4": 0.3, "untuned": 1.0}}), 4)
    assert (choice.variant, choice.how) == ("cpu:4", How.EXACT)
    assert choice.reason == "it was tuned for 4 cores, and no other variant was faster there"


def test_one_tuned_elsewhere_that_is_faster_here_is_taken() -> None:
    choice = choose_variant(a_bundle(measured={"cpu:4": {"cpu:1": 0.2, "cpu:4": 0.3, "untuned": 1.0}}), 4)
    assert (choice.variant, choice.how) == ("cpu:1", How.EXACT)


def test_between_two_shares_the_one_that_loses_least_at_both() -> None:
    choice = choose_variant(a_bundle(measured=MEASURED), 2)
    assert (choice.variant, choice.how) == ("cpu:4", How.NEAR)
    assert choice.regret == pytest.approx(0.05)
    assert "at most 5.0 % slower" in choice.reason


def test_what_chose_a_variant_does_not_tell_what_it_loses() -> None:
    reported = {**MEASURED, "cpu:1": {"cpu:1": 1.3, "cpu:4": 1.56, "untuned": 1.9}}
    bundle = a_bundle(measured=reported, choosing=MEASURED)
    between = choose_variant(bundle, 2)
    assert (between.variant, between.how) == ("cpu:4", How.NEAR)
    assert between.regret == pytest.approx(0.2)
    lucky = {"cpu:4": {"cpu:1": 0.29, "cpu:4": 0.3, "untuned": 1.0}}
    one = choose_variant(a_bundle(measured=lucky, choosing={"cpu:4": MEASURED["cpu:4"]}), 4)
    assert (one.variant, one.how) == ("cpu:4", How.EXACT)


def test_the_robust_variant_is_one_of_those_measured() -> None:
    variants = [{"name": name, "objects": ["lib0.o"], "weights": []} for name in ("robust", "untuned")]
    measured = {share: {"robust": 1.0, "untuned": 2.0} for share in MEASURED}
    choice = choose_variant(a_bundle(variants=variants, measured=measured), 16)
    assert (choice.variant, choice.how, choice.regret) == ("robust", How.ROBUST, 0.0)


def test_where_the_untuned_one_is_the_fastest_it_is_taken() -> None:
    measured = {"cpu:1": {"cpu:1": 2.0, "cpu:4": 3.0, "untuned": 1.0}}
    choice = choose_variant(a_bundle(measured=measured), 1)
    assert (choice.variant, choice.how) == ("untuned", How.NONE)
    assert choice.reason == "the untuned default is the fastest measured at 1 core"


def test_nothing_measured_but_tuned_for_just_this_share() -> None:
    choice = choose_variant(a_bundle(), 4)
    assert (choice.variant, choice.how) == ("cpu:4", How.EXACT)
    assert math.isnan(choice.regret)
    assert choice.reason.startswith("it was tuned for 4 cores")


def test_nothing_measured_near_is_untuned_and_says_so() -> None:
    choice = choose_variant(a_bundle(), 2)
    assert (choice.variant, choice.how, choice.exact) == ("untuned", How.NONE, False)
    assert "nor at another share; to get a faster variant, tune the model for cpu:2" in choice.reason
    assert math.isnan(choice.regret)


@pytest.mark.parametrize(("units", "variant"), [(2, "cpu:1"), (3, "cpu:4"), (16, "cpu:4")])
def test_the_nearest_by_ratio_only_where_the_policy_allows_it(units: int, variant: str) -> None:
    choice = choose_variant(a_bundle(), units, ANYTHING)
    assert (choice.variant, choice.how) == (variant, How.NEAR)
    assert "never measured" in choice.reason


def test_a_bundle_without_tuned_variants_runs_untuned() -> None:
    choice = choose_variant(a_bundle(variants=[{"name": "untuned", "objects": ["lib0.o"], "weights": []}]), 1, ANYTHING)
    assert choice.variant == "untuned"
    assert choice.reason == (
        "the bundle has no variant for a single share; to get a faster variant, tune the model for cpu:1"
    )
    assert math.isnan(choice.regret)
