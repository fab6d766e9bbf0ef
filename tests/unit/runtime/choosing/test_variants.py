"""Which variant of a bundle fits a share, by what was measured and without it."""

import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune_core.analysis.match import DEFAULT_POLICY, How, Policy
from fractune_core.files.bundles import RECORDS, WEIGHTS, Bundle, object_entry, write_bundle
from fractune_core.shares import GrantedShare
from fractune_runtime.choosing import VariantChoice, choose_variant, match_share
from fractune_runtime.cpu import ShareHere
from fractune_runtime.runner import CallersThread
from tests.support.client_samples import bundle_bytes, variants
from tests.support.real_bundle import Small

MEASURED = {
    "cpu:1": {"cpu:1": 1.0, "cpu:4": 1.05, "untuned": 2.0},
    "cpu:4": {"cpu:1": 0.9, "cpu:4": 0.3, "untuned": 1.0},
}
ANYTHING = Policy(allow_unmeasured=True)


def a_bundle(**changes: Any) -> Bundle:
    return Bundle(bundle_bytes(**changes))


AT_4, REPORTED = {"cpu:1": 0.3, "cpu:4": 0.3, "untuned": 1.0}, {"cpu:1": 1.3, "cpu:4": 1.56, "untuned": 1.9}
ROBUST = {share: {"robust": 1.0, "untuned": 2.0} for share in MEASURED}
UNTUNED_FASTEST = {"cpu:1": {"cpu:1": 2.0, "cpu:4": 3.0, "untuned": 1.0}}


@pytest.mark.parametrize(
    ("units", "changes", "variant", "how", "regret", "says"),
    [
        (1, {"measured": MEASURED}, "cpu:1", How.EXACT, 0.0, ""),
        (4, {"measured": MEASURED}, "cpu:4", How.EXACT, 0.0, ""),
        (4, {"measured": {"cpu:4": AT_4}}, "cpu:4", How.EXACT, 0.0, "and no other variant was faster there"),
        (4, {"measured": {"cpu:4": {**AT_4, "cpu:1": 0.2}}}, "cpu:1", How.EXACT, 0.0, ""),
        (2, {"measured": MEASURED}, "cpu:4", How.NEAR, 0.05, "at most 5.0 % slower"),
        # What chose a variant does not say what it loses.
        (2, {"measured": {**MEASURED, "cpu:1": REPORTED}, "choosing": MEASURED}, "cpu:4", How.NEAR, 0.2, ""),
        (
            4,
            {"measured": {"cpu:4": {**AT_4, "cpu:1": 0.29}}, "choosing": {"cpu:4": MEASURED["cpu:4"]}},
            *("cpu:4", How.EXACT, 0.0, ""),
        ),
        (16, {"variants": variants("robust", "untuned"), "measured": ROBUST}, "robust", How.ROBUST, 0.0, ""),
        (
            1,
            {"measured": UNTUNED_FASTEST},
            "untuned",
            How.NONE,
            0.0,
            "untuned default is the fastest measured at 1 core",
        ),
        (4, {}, "cpu:4", How.EXACT, math.nan, "it was tuned for 4 cores"),
        (
            2,
            {},
            "untuned",
            How.NONE,
            math.nan,
            "nor at another share; to get a faster variant, tune the model for cpu:2",
        ),
    ],
)
def test_the_variant_at_a_share(
    units: int, changes: dict[str, Any], variant: str, how: How, regret: float, says: str
) -> None:
    choice = choose_variant(a_bundle(**changes), units)
    assert (choice.variant, choice.how, choice.exact) == (variant, how, how is How.EXACT)
    assert choice.regret == pytest.approx(regret, nan_ok=True)
    assert says in choice.reason


@pytest.mark.parametrize(("units", "variant"), [(2, "cpu:1"), (3, "cpu:4"), (16, "cpu:4")])
def test_the_nearest_by_ratio_only_where_the_policy_allows_it(units: int, variant: str) -> None:
    choice = choose_variant(a_bundle(), units, ANYTHING)
    assert (choice.variant, choice.how) == (variant, How.NEAR)
    assert "never measured" in choice.reason
    untuned = choose_variant(a_bundle(variants=variants("untuned")), 1, ANYTHING)
    assert untuned.reason == (
        "the bundle has no variant for a single share; to get a faster variant, tune the model for cpu:1"
    )


ONE = {"cpu:1": {"cpu:1": 1.0, "untuned": 9.0}}


def chosen(units: int, policy: Policy = DEFAULT_POLICY, mechanism: str = "cpu", **changes: Any) -> VariantChoice | None:
    """None if it does not run as at a smaller share."""
    here = ShareHere(units, tuple(range(units)), "made up", mechanism)
    choice, share = match_share(Bundle(bundle_bytes(**changes)), here, policy, "latency")
    assert share == here
    return choice if "nothing was tuned or timed for" in choice.reason else None


@pytest.mark.parametrize(("units", "variant", "threads"), [(2, "cpu:1", 1), (3, "cpu:1", 1), (16, "cpu:4", 4)])
def test_the_largest_smaller_share_lends_its_variant_and_its_threads(units: int, variant: str, threads: int) -> None:
    found = chosen(units)
    assert found is not None
    assert (found.variant, found.how, found.threads) == (variant, How.NEAR, threads)
    assert math.isnan(found.regret)


def test_the_reason_says_as_what_it_runs_and_what_to_tune() -> None:
    found = chosen(2, measured=ONE)
    assert found is not None
    assert found.reason == (
        "it was tuned for 1 core, and no other variant was faster there; nothing was tuned or timed for 2 cores, so it "
        "runs as on 1 core, with 1 thread; to get a faster variant, tune the model for cpu:2"
    )


def test_at_the_smaller_share_its_own_times_decide() -> None:
    tiny = {"cpu:4": {"cpu:4": 1e-6}}
    found = chosen(16, measured=tiny)
    assert found is not None
    assert (found.variant, found.threads) == ("cpu:4", 1), "one thread runs a tiny model there"
    better_untuned = {"cpu:4": {"cpu:4": 2.0, "untuned": 1.0}}
    found = chosen(16, measured=better_untuned)
    assert found is not None
    assert (found.variant, found.threads) == ("cpu:1", 1), "at 4 cores no tuned variant is the best"


@pytest.mark.parametrize(
    ("units", "policy", "mechanism", "changes"),
    [
        (1, DEFAULT_POLICY, "cpu", {}),
        (1, DEFAULT_POLICY, "cpu", {"variants": variants("cpu:4", "untuned")}),
        (2, DEFAULT_POLICY, "cpu", {"measured": {**ONE, "cpu:4": {"cpu:1": 0.5, "untuned": 5.0}}}),
        (2, Policy(allow_unmeasured=True), "cpu", {}),
        (2, Policy(loosest=How.EXACT), "cpu", {}),
        (2, DEFAULT_POLICY, "cpu", {"variants": variants("untuned")}),
        (
            60,
            DEFAULT_POLICY,
            "mps",
            {
                "variants": variants("mps:25", "untuned"),
                "shares": {"mps:25": GrantedShare("mps:25", 33, 132, "sm", 1, reserved=False).to_json()},
            },
        ),
    ],
    ids=["tuned here", "only larger", "measured regret", "unmeasured allowed", "only exact", "untuned", "gpu"],
)
def test_otherwise_the_choice_stays(units: int, policy: Policy, mechanism: str, changes: dict[str, Any]) -> None:
    assert chosen(units, policy, mechanism, **changes) is None


def with_variants(small: Small, path: Path, *names: str, **changes: Any) -> Path:
    """The small bundle with those variants alone, and with `changes` of its manifest."""
    bundle = Bundle(small.bundle)
    kept = [each for each in bundle.variants if each["name"] in names]
    entries = {name: bundle.read(name) for name in (RECORDS, WEIGHTS)}
    for number, each in enumerate(kept):
        code = zip(each["objects"], bundle.objects(each["name"]), strict=True)
        entries |= {object_entry(number, name): content for name, content in code}
    with path.open("wb") as file:
        write_bundle(file, {**bundle.manifest, "variants": kept, **changes}, entries)
    return path


def test_a_bundle_for_one_core_runs_tuned_on_two(small: Small, tmp_path: Path, two_cpus: list[int]) -> None:
    os.sched_setaffinity(0, two_cpus)
    path = with_variants(small, tmp_path / "one.fractune", "cpu:1", "untuned")
    model, session = fractune.load(path), fractune.InferenceSession(path)
    for each in (model, session.model):
        assert (each.choice.variant, each.threads, each.share.units) == ("cpu:1", 1, 2)
    assert type(model._runner) is CallersThread
    inputs = model.random_inputs()
    np.testing.assert_array_equal(session.run(None, inputs)[0], model.run(inputs)[0])
    os.sched_setaffinity(0, two_cpus[:1])
    assert model.rematch().exact


def test_a_warning_says_what_to_tune_where_only_the_untuned_variant_is_left(
    small: Small, tmp_path: Path, two_cpus: list[int]
) -> None:
    path = with_variants(small, tmp_path / "two.fractune", "cpu:2", "untuned")
    says = r"two\.fractune runs its untuned variant, .*, tune the model for cpu:1"
    for load in (fractune.load, fractune.InferenceSession):
        with pytest.warns(RuntimeWarning, match=says) as told:
            load(path, share="cpu:1")
        assert [each.filename for each in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        os.sched_setaffinity(0, two_cpus)
        model = fractune.load(path)
        measured = {"cpu:1": {"cpu:2": 2.0, "untuned": 1.0}}
        fastest = with_variants(
            small, tmp_path / "fastest.fractune", "cpu:2", "untuned", measured=measured, choosing=measured
        )
        assert fractune.load(fastest, share="cpu:1").choice.variant == "untuned"
    os.sched_setaffinity(0, two_cpus[:1])
    with pytest.warns(RuntimeWarning, match=says):
        model.rematch()
