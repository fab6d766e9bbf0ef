"""The schedules of a bundle, what each variant takes at each share, and that tables and `match` tell the same."""

import random
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fractune.features.matrix.cross_table import CrossTable, operator_table, sentences
from fractune.server.job_status import OperatorRecords, OperatorStatus
from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.analysis.match import How, find_match
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.codec.messages import from_proto
from fractune_core.files.bundles import Bundle
from fractune_core.jobs import OperatorTask
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning.devices import device_type
from fractune_core.records import UNTUNED, VALIDATION_POLICY, TimingPolicy
from fractune_core.shares import Device, GrantedShare, Share
from fractune_runtime.choosing import choose_variant
from fractune_server.selection.model_match import (
    Matcher,
    ModelAnswer,
    OperatorRow,
    _row,
    _with_timing,
    operators_at,
    timed_secs,
)
from fractune_server.selection.variants import (
    Deployment,
    ValidatedOperator,
    Variant,
    measured_secs,
    robust_for_model,
    variants_for,
    with_alternatives,
)
from tests.support.client_samples import bundle_bytes, variants as named_variants
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, granted, validation

TRACES = [UNTUNED, "a", "b", "c", "d"]
NAME = WORKLOAD


def deployment(units: tuple[int, ...]) -> Deployment:
    return Deployment(DEVICE.key, TARGET_KEY, {f"cpu:{each}": granted(each) for each in units})


def one_program(
    rng: random.Random, units: tuple[int, ...], policy: TimingPolicy = VALIDATION_POLICY
) -> ValidatedRecords:
    """Finalists that are all one program, at each of the shares timed in turn."""

    def run_secs() -> tuple[float, ...]:
        return tuple(1.0 + 0.1 * rng.paretovariate(1.5) for _ in range(policy.repeats))

    return ValidatedRecords(
        tuple(validation(trace, at, 0.0, run_secs=run_secs(), policy=policy) for trace in TRACES for at in units)
    )


def row(found: ValidatedRecords, place: Deployment) -> OperatorRow:
    return _row(OperatorTask(NAME, "conv2d", 1), found, place)


def table(found: ValidatedRecords, place: Deployment) -> CrossTable:
    cells = tuple((tuned_at, run_at, record) for (tuned_at, run_at), record in row(found, place).cells.items())
    operator = from_proto(OperatorStatus, pb.Operator(display_name="conv2d", workload_hash=NAME, weight=1))
    return operator_table(OperatorRecords(operator, cells), list(place.granted))


def says_a_difference(told: CrossTable) -> bool:
    """In a cell, or below."""
    words = any(" loses " in sentence or " faster than " in sentence for sentence in sentences(told))
    return words or any(not lost.is_tie for *_, lost in told.all())


def false_alarms(units: tuple[int, ...], tables: int, policy: TimingPolicy = VALIDATION_POLICY) -> float:
    """The part of the tables that say that something differs where all is one program."""
    rng, place, alarms = random.Random(0), deployment(units), 0
    for _ in range(tables):
        alarms += says_a_difference(table(one_program(rng, units, policy), place))
    return alarms / tables


@pytest.mark.parametrize("units", [(1,), (1, 2)])
def test_a_table_of_chosen_schedules_seldom_says_that_one_loses_where_all_are_one(units: tuple[int, ...]) -> None:
    assert false_alarms(units, tables=200) <= 0.05


def test_match_and_table_tell_of_the_same_measurement() -> None:
    rng, place = random.Random(0), deployment((1, 2))
    for _ in range(50):
        found = one_program(rng, (1, 2))
        for share, cell in ((share, row(found, place).cells[share, share]) for share in place.granted):
            matched = find_match(found, place.granted[share], DEVICE.key, TARGET_KEY)
            chosen = UNTUNED if matched.record is None else matched.record.trace
            assert (cell.trace, cell.share) == (chosen, share)
            assert matched.record in (None, cell)


def test_between_two_shares_match_tells_a_loss_that_stands_in_the_table() -> None:
    rng, place = random.Random(0), deployment((1, 4))
    for _ in range(50):
        found = one_program(rng, (1, 4))
        matched = find_match(found, granted(2), DEVICE.key, TARGET_KEY)
        if matched.record is None:
            continue
        assert matched.how is How.NEAR
        measured, cells = found.measured(DEVICE.key, TARGET_KEY, "cpu"), row(found, place).cells
        losses = [
            measured.reported[units][matched.record.candidate_id] / cells[f"cpu:{units}", f"cpu:{units}"].median_s - 1.0
            for units in (1, 4)
        ]
        assert matched.regret in [pytest.approx(loss) for loss in losses]


def test_a_bundle_runs_at_a_share_what_match_answers_there() -> None:
    rng, place = random.Random(0), deployment((1, 4))
    for _ in range(50):
        operators = [ValidatedOperator(NAME, 1, one_program(rng, (1, 4)))]
        variants = variants_for(place, operators, robust_only=False)
        measured = measured_secs(place, operators, variants)
        choosing = measured_secs(place, operators, variants, choosing=True)
        named = named_variants(*(variant.name for variant in variants))
        bundle = Bundle(bundle_bytes(variants=named, measured=measured, choosing=choosing))
        traces = {variant.name: variant.traces for variant in variants}
        for share, at in place.granted.items():
            taken = choose_variant(bundle, at.units)
            assert traces[taken.variant] == traces[share]
            assert measured[share][taken.variant] == row(operators[0].validated, place).cells[share, share].median_s


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


@pytest.mark.parametrize(("noise", "names"), [(0.009, ["cpu:1", "cpu:2"]), (0.02, ["cpu:1", "cpu:2", "robust"])])
def test_no_robust_variant_where_it_would_save_next_to_nothing(noise: float, names: list[str]) -> None:
    """Each variant is compiled, compared with the model file, and timed at each share."""
    times = {"one": (1.0, 1.0 + noise), "two": (1.0 + noise, 1.0), "both": (1.001, 1.001)}
    found = operator({UNTUNED: (9.0, 9.0), **times})
    assert list(traces(variants_for(PLACE, [found], robust_only=False))) == [*names, "untuned"]


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


SECS = st.floats(1e-6, 10.0)

OPERATORS = st.dictionaries(
    st.sampled_from(["conv", "dense", "pool"]),
    st.fixed_dictionaries({units: st.fixed_dictionaries(dict.fromkeys(("a", "b", "c"), SECS)) for units in (1, 2)}),
    min_size=1,
)


def _model_regret(times: dict[str, dict[int, dict[str, float]]], chosen: dict[str, str]) -> float:
    return (
        max(
            sum(times[op][units][name] for op, name in chosen.items())
            / sum(min(t[units].values()) for t in times.values())
            for units in (1, 2)
        )
        - 1.0
    )


@given(OPERATORS)
def test_a_robust_model_loses_no_more_than_what_is_tuned_at_one_share(
    times: dict[str, dict[int, dict[str, float]]],
) -> None:
    weights, default = dict.fromkeys(times, 1), dict.fromkeys(times, "")
    chosen, regret = robust_for_model(times, weights, [1, 2], default)
    assert chosen.keys() == times.keys()
    assert regret == pytest.approx(_model_regret(times, chosen))
    for units in (1, 2):
        tuned = {op: min(found[units], key=found[units].__getitem__) for op, found in times.items()}
        assert regret <= _model_regret(times, tuned) + 1e-6
    every = [dict(zip(times, names, strict=True)) for names in product("abc", repeat=len(times))]
    assert regret <= 1e-6 + 2 * max(_model_regret(times, one) for one in every)


def test_the_whole_model_may_want_another_schedule_than_the_operator_alone() -> None:
    # Alone, the big operator's least worst regret is b (10 % at both); beside the small one, which loses nothing.
    times = {
        "big": {1: {"a": 1.0, "b": 1.1}, 2: {"a": 1.21, "b": 1.0}},
        "small": {1: {"a": 1.0}, 2: {"a": 1.0}},
    }
    chosen, regret = robust_for_model(times, {"big": 1, "small": 9}, [1, 2], {})
    assert chosen == {"big": "b", "small": "a"}
    assert regret == pytest.approx(0.01)
    assert robust_for_model(times, {"big": 1, "small": 9}, [1, 4], {}) == ({}, 0.0)


def test_of_several_starts_the_one_that_ends_best_counts() -> None:
    # From the fastest at the second share, no single change helps: that ends at a regret of 1.0.
    times = {
        "a": {1: {"x": 4.0, "y": 5.0, "z": 8.0}, 2: {"x": 3.0, "y": 4.0, "z": 1.0}},
        "b": {1: {"x": 1.0, "y": 6.0, "z": 6.0}, 2: {"x": 2.0, "y": 9.0, "z": 1.0}},
    }
    chosen, regret = robust_for_model(times, {"a": 1, "b": 1}, [1, 2], {})
    assert chosen == {"a": "z", "b": "x"}
    assert regret == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("run_secs", "share"),
    [
        ({"untuned": [3.0], "cpu:1": [1.0], "cpu:2": [2.0]}, "cpu:1"),
        ({"untuned": [3.0], "cpu:1": [2.0], "cpu:2": [1.0]}, "cpu:2"),
        ({"untuned": [3.0], "robust": [1.0]}, "cpu:2"),
        ({"untuned": [1.0], "cpu:1": [2.0], "cpu:2": [3.0]}, "cpu:2"),
    ],
)
def test_operators_under_a_limit_are_those_of_whole_cores(run_secs: dict[str, list[float]], share: str) -> None:
    assert operators_at({"run_secs": run_secs, "at_load": [], "others_cores": 0.0}, Share.parse("cpu:1500m")) == share


def test_a_model_that_no_job_has_timed_is_matched_by_the_log_alone() -> None:
    answer = ModelAnswer([], None)
    assert _with_timing(answer, None) == answer
    timed = _with_timing(answer, {"at_load": [], "others_cores": 0.5, "inside": None})
    assert (timed.others_cores, timed.inside) == (0.5, None)
    inside = Inside((CallTime("conv", 1, 0.9, "hash", "candidate"),), 1.0, 1.1)
    assert _with_timing(answer, {"at_load": [], "others_cores": 0.5, "inside": inside.to_json()}).inside == inside


def test_disturbed_times_of_a_job_are_apart() -> None:
    granted = {n: GrantedShare(f"cpu:{n}", n, 2, "core", 1 << 30, reserved=False).to_json() for n in (1, 2)}
    job: Any = SimpleNamespace(
        timings={
            f"cpu:{n}": {"granted": granted[n], "run_secs": {f"cpu:{n}": [1.0 / n]}, "others_cores": others_cores}
            for n, others_cores in ((1, 0.9), (2, 0.1))
        }
    )
    here = device_type("", 2, "cpu", 0.0)
    assert timed_secs(job, here, disturbed=False) == {2: 0.5}
    assert timed_secs(job, here, disturbed=True) == {1: 1.0}


def test_the_newest_quiet_timing_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, busier, quiet = ({"others_cores": cores} for cores in (0.8, 0.9, 0.0))
    unused: Any = None
    matcher = Matcher(unused)

    def matched(*timings: dict[str, Any]) -> dict[str, Any] | None:
        done = [SimpleNamespace(timings={"cpu:1": timing} if timing else {}) for timing in timings]
        monkeypatch.setattr(matcher, "_done", lambda *_: iter(done))
        return matcher._timing(unused, unused, unused, Share.parse("cpu:1"))

    assert matched({}, busy, busier, quiet) is quiet
    assert matched({}, busy, busier) is busy
    assert matched({}) is None
