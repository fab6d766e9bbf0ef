"""Which schedules go into a bundle, and what each variant is known to take at each share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fractune_core.analysis.match import How
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.records import UNTUNED
from fractune_core.shares import Device, GrantedShare
from fractune_server.selection.variants import (
    Deployment,
    ValidatedOperator,
    Variant,
    measured_secs,
    variants_for,
    with_alternatives,
)
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, granted, validation

PLACE = Deployment(DEVICE.key, TARGET_KEY, {"cpu:1": granted(1), "cpu:2": granted(2)})
GPU = Device("cuda", "sm_90", 132, 140, 51200)


def operator(times: dict[str, tuple[float, float]], weight: int = 1) -> ValidatedOperator:
    """Seconds at one and at two cores by trace."""
    records = [validation(trace, units, secs[units - 1]) for trace, secs in times.items() for units in (1, 2)]
    return ValidatedOperator(WORKLOAD, weight, ValidatedRecords(tuple(records)))


def traces(variants: list[Variant]) -> dict[str, dict[str, str]]:
    return {variant.name: variant.traces for variant in variants}


def test_a_variant_for_each_share_and_a_robust_one_where_it_is_another() -> None:
    found = operator({UNTUNED: (9.0, 9.0), "one": (1.0, 3.0), "two": (3.0, 1.0), "both": (1.1, 1.1)}, weight=2)
    variants = variants_for(PLACE, [found], robust_only=False)
    assert traces(variants) == {
        "cpu:1": {WORKLOAD: "one"},
        "cpu:2": {WORKLOAD: "two"},
        "robust": {WORKLOAD: "both"},
        "untuned": {},
    }
    robust = variants[2].matches[WORKLOAD]
    assert robust.how is How.ROBUST
    assert robust.regret == pytest.approx(0.1)
    assert measured_secs(PLACE, [found], variants) == {
        "cpu:1": {"cpu:1": 2.0, "cpu:2": 6.0, "robust": 2.2, "untuned": 18.0},
        "cpu:2": {"cpu:1": 6.0, "cpu:2": 2.0, "robust": 2.2, "untuned": 18.0},
    }


def test_no_robust_variant_beside_one_that_has_the_same_schedules() -> None:
    found = operator({UNTUNED: (9.0, 9.0), "one": (1.0, 1.1), "two": (3.0, 1.0)})
    assert list(traces(variants_for(PLACE, [found], robust_only=False))) == ["cpu:1", "cpu:2", "untuned"]
    assert traces(variants_for(PLACE, [found], robust_only=True)) == {"robust": {WORKLOAD: "one"}, "untuned": {}}


def test_an_alternative_has_variants_of_its_own_at_shares_where_it_has_a_schedule() -> None:
    plain = operator({UNTUNED: (9.0, 9.0), "one": (1.0, 3.0), "two": (3.0, 1.0)})
    records = ValidatedRecords(
        (*(validation(UNTUNED, units, 9.0) for units in (1, 2)), validation("triton:[1]", 1, 1.0))
    )
    other = ValidatedOperator("e" * 16, 0, records)
    variants = variants_for(PLACE, [plain], robust_only=False)
    twins = with_alternatives(PLACE, [other], variants)
    assert traces(twins) == {"cpu:1+attention": {WORKLOAD: "one", "e" * 16: "triton:[1]"}}
    assert with_alternatives(PLACE, [], variants) == []
    exact = ValidatedOperator("e" * 16, 0, records.exact)
    assert with_alternatives(PLACE, [exact], variants) == []
    assert with_alternatives(PLACE, [other], variants_for(PLACE, [plain], robust_only=True)) == []


def test_an_operator_without_records_stays_untuned_and_counts_in_no_sum() -> None:
    found = [operator({UNTUNED: (9.0, 9.0), "one": (1.0, 1.0)}), ValidatedOperator("e" * 16, 5, ValidatedRecords())]
    variants = variants_for(PLACE, found, robust_only=False)
    assert variants[0].traces == {WORKLOAD: "one"}
    assert measured_secs(PLACE, found, variants)["cpu:1"] == {"cpu:1": 1.0, "cpu:2": 1.0, "untuned": 9.0}


def test_a_variant_is_absent_where_its_schedule_was_not_measured() -> None:
    records = [
        validation(UNTUNED, 1, 9.0),
        validation(UNTUNED, 2, 9.0),
        validation("one", 1, 1.0),
        validation("two", 2, 1.0),
    ]
    found = [ValidatedOperator(WORKLOAD, 1, ValidatedRecords(tuple(records)))]
    variants = variants_for(PLACE, found, robust_only=False)
    assert measured_secs(PLACE, found, variants) == {
        "cpu:1": {"cpu:1": 1.0, "robust": 9.0, "untuned": 9.0},
        "cpu:2": {"cpu:2": 1.0, "robust": 9.0, "untuned": 9.0},
    }


def test_one_variant_for_shares_of_several_mechanisms() -> None:
    place = Deployment(GPU.key, TARGET_KEY, {share: on_gpu(share) for share in ("mps:25", "mps:50", "full")})
    times = {UNTUNED: (9.0, 9.0, 9.0), "part": (1.0, 2.0, 2.0), "whole": (2.0, 1.0, 1.0), "both": (1.1, 1.2, 1.2)}
    records = [
        replace(validation(trace, 1, secs), device=GPU, share=share, granted=on_gpu(share))
        for trace, row in times.items()
        for share, secs in zip(place.granted, row, strict=True)
    ]
    found = ValidatedOperator(WORKLOAD, 1, ValidatedRecords(tuple(records)))
    variants = variants_for(place, [found], robust_only=False)
    assert traces(variants) == {
        "mps:25": {WORKLOAD: "part"},
        "mps:50": {WORKLOAD: "whole"},
        "full": {WORKLOAD: "whole"},
        "robust": {WORKLOAD: "both"},
        "untuned": {},
    }
    robust = variants[3].matches[WORKLOAD]
    assert robust.regret == pytest.approx(0.2)
    assert robust.reason == "the model loses at most 20.0 % at mps:25, mps:50, full"


def test_a_range_has_the_variant_that_loses_least_within_it() -> None:
    """`alone` loses 5 % between 25 and 50 %, and most on the whole GPU. Without it the range has that of `mps:25`."""
    place = Deployment(GPU.key, TARGET_KEY, {share: on_gpu(share) for share in ("mps:25", "mps:50", "full")})
    times = {UNTUNED: (9.0, 9.0, 9.0), "part": (1.0, 1.1, 3.0), "half": (2.0, 1.0, 1.0), "both": (1.2, 1.2, 1.2)}
    records = [
        replace(validation(trace, 1, secs), device=GPU, share=share, granted=on_gpu(share))
        for trace, row in times.items()
        for share, secs in zip(place.granted, row, strict=True)
    ]
    more = ("alone", (1.05, 1.05, 9.0))
    with_alone = [
        replace(validation(more[0], 1, secs), device=GPU, share=share, granted=on_gpu(share))
        for share, secs in zip(place.granted, more[1], strict=True)
    ]
    found = ValidatedOperator(WORKLOAD, 1, ValidatedRecords((*records, *with_alone)))
    variants = variants_for(place, [found], ["mps:25..50"], robust_only=False)
    assert traces(variants)["mps:25..50"] == {WORKLOAD: "alone"}
    assert traces(variants)["robust"] == {WORKLOAD: "both"}
    within = variants[3].matches[WORKLOAD]
    assert (within.how, within.reason) == (How.ROBUST, "the model loses at most 5.0 % at 32, 66 SMs")
    same = ValidatedOperator(WORKLOAD, 1, ValidatedRecords(tuple(records)))
    assert "mps:25..50" not in traces(variants_for(place, [same], ["mps:25..50"], robust_only=False))


def on_gpu(share: str) -> GrantedShare:
    units = {"mps:25": 32, "mps:50": 66, "full": 132}[share]
    return GrantedShare(share, units, GPU.units, "sm", 140 << 30, reserved=False)
