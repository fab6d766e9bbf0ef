"""Which record is used at a share, and why."""

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from fractune_core.analysis.match import DEFAULT_POLICY, Choice, How, Match, Policy, choose, find_match, least_regret
from fractune_core.analysis.validated import MeasuredTimes, Times, ValidatedRecords
from fractune_core.operators import WINOGRAD2, text_of
from fractune_core.records import UNTUNED, VALIDATION_POLICY, Kind, Status, TuningRecord
from tests.support.samples import DEVICE, TARGET_KEY, divided, granted, validation

UNMEASURED = Policy(allow_unmeasured=True)


def match(records: list[TuningRecord], units: int, policy: Policy = DEFAULT_POLICY) -> Match:
    return find_match(ValidatedRecords(tuple(records)), granted(units), DEVICE.key, TARGET_KEY, policy)


def times_of(records: list[TuningRecord]) -> Times:
    return MeasuredTimes(tuple(records)).choosing


def trace(answer: Match) -> str:
    assert answer.record is not None
    return answer.record.trace


def test_a_near_share_takes_what_loses_least_on_both_sides() -> None:
    answer = match(
        [validation("a", 2, 1.0), validation("a", 4, 2.0), validation("b", 2, 1.1), validation("b", 4, 1.0)], 3
    )
    assert (answer.how, trace(answer)) == (How.NEAR, "b")
    assert answer.regret == pytest.approx(0.1)
    assert "10.0 %" in answer.reason


def test_what_chose_a_schedule_is_told_of_nothing() -> None:
    """By the repeats that choose a is fastest at 2 and loses 10 % at 4; by those that are reported it loses 30 %."""
    records = [
        divided("a", 2, 1.0, 1.5),
        divided("a", 4, 1.1, 1.3),
        divided("b", 2, 2.0, 1.2),
        divided("b", 4, 1.0, 1.0),
    ]
    exact = match(records, 2)
    assert exact.record is not None
    assert (exact.how, trace(exact), exact.record.median_s, exact.regret) == (How.EXACT, "a", 1.5, 0.0)
    near = match(records, 3)
    assert (near.how, trace(near)) == (How.NEAR, "a")
    assert near.regret == pytest.approx(0.3)
    assert near.reason == "it is at most 30.0 % slower than the fastest at the nearest measured shares (2, 4 cores)"


def test_of_several_measurements_the_repeats_that_choose_take_one_and_its_others_are_told() -> None:
    records = [divided("a", 1, 1.0, 1.4, record_id="r1"), divided("a", 1, 1.1, 1.2, record_id="r2")]
    answer = match(records, 1)
    assert answer.record is not None
    assert (answer.record.record_id, answer.record.median_s) == ("r1", 1.4)


def test_a_loss_is_told_of_the_share_at_which_the_repeats_that_choose_lose_most_and_may_be_none() -> None:
    records = [divided("a", 2, 1.2, 0.9), divided("a", 4, 1.1, 1.1)]
    records += [divided("b", 2, 1.0, 1.0), divided("c", 4, 1.0, 1.0)]
    assert match(records, 3).regret == pytest.approx(-0.1)


def test_beyond_the_measured_shares_the_two_next_to_it_count() -> None:
    rows = {1: {"a": 9.0, "b": 1.0}, 4: {"a": 1.0, "b": 1.2}, 8: {"a": 1.0, "b": 1.5}}
    assert choose(rows, 16, UNTUNED) == Choice(
        How.NEAR, "a", 0.0, "it is at most 0.0 % slower than the fastest at the nearest measured shares (4, 8 units)"
    )


def test_far_from_every_measured_share_the_robust_one() -> None:
    answer = match(
        [validation("a", 1, 1.0), validation("a", 2, 5.0), validation("b", 1, 1.2), validation("b", 2, 1.0)], 16
    )
    assert (answer.how, trace(answer)) == (How.ROBUST, "b")


def test_a_policy_keeps_looser_ways_out() -> None:
    records = [validation("a", 2, 1.0), validation("a", 4, 2.0), validation("b", 2, 1.1), validation("b", 4, 1.0)]
    assert match(records, 3, Policy(How.EXACT)).how is How.NONE
    assert match(records, 3, Policy(How.NEAR)).how is How.NEAR
    assert match(records, 16, Policy(How.NEAR)).how is How.NONE
    assert match(records, 2, Policy(How.EXACT)).how is How.EXACT


def test_what_was_measured_at_one_share_only_is_offered_only_when_allowed() -> None:
    records = [validation("a", 2, 1.0), validation("b", 2, 2.0)]
    answer = match(records, 3)
    assert (answer.how, answer.record) == (How.NONE, None)
    assert "do not show which is fast here" in answer.reason
    assert math.isnan(answer.regret)
    answer = match(records, 3, UNMEASURED)
    assert (answer.how, trace(answer)) == (How.NEAR, "a")
    assert math.isnan(answer.regret)
    assert "never measured" in answer.reason


def test_winners_never_measured_at_each_others_share_have_no_measured_regret() -> None:
    records = [validation("a", 2, 1.0), validation("b", 4, 1.0)]
    assert match(records, 3).how is How.NONE
    assert math.isnan(match(records, 3).regret)
    assert trace(match(records, 3, UNMEASURED)) == "b"


def test_the_untuned_default_between_two_shares_has_the_regret_that_was_measured() -> None:
    rows = {2: {UNTUNED: 1.1, "a": 1.2, "b": 1.0}, 4: {UNTUNED: 1.0, "a": 1.0, "b": 1.3}}
    answer = choose(rows, 3, UNTUNED)
    assert (answer.how, answer.name) == (How.NONE, None)
    assert answer.regret == pytest.approx(0.1)


def test_an_untuned_default_that_wins_is_told_with_its_reported_time_at_this_share_only() -> None:
    records = [divided(UNTUNED, 1, 1.0, 1.2), divided("a", 1, 2.0, 2.0), divided(UNTUNED, 4, 1.0, 1.0)]
    here = match(records, 1)
    assert (here.reason, here.untuned_s) == ("the untuned default is the fastest measured at 1 core", 1.2)
    between = match([*records, divided("a", 4, 2.0, 2.0)], 2)
    assert (
        between.reason
        == "the untuned default is at most 0.0 % slower than the fastest at the nearest measured shares (1, 4 cores)"
    )
    assert between.untuned_s is None
    unmeasured = match(records[:2], 8, UNMEASURED)
    assert (
        unmeasured.reason
        == "the untuned default is the fastest at 1 core, the nearest measured share; its speed here was never measured"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": Kind.TRIAL}, "no published"),
        ({"status": Status.WRONG_OUTPUT}, "no published"),
        ({"run_secs": (math.nan,) * 20}, "no published"),
        ({"run_secs": (-1.0,) * 20}, "no published"),
        ({"device": replace(DEVICE, isa="zen4")}, "another device"),
        ({"target_key": "other"}, "another target"),
        ({"granted": granted(1, "mps")}, "never measured under"),
    ],
)
def test_a_mismatch_is_a_miss_said_aloud(changes: dict[str, object], says: str) -> None:
    answer = match([validation("a", 1, 1.0, **changes)], 1, UNMEASURED)
    assert (answer.how, answer.record) == (How.NONE, None)
    assert says in answer.reason


def test_contradictory_measurements_are_pointed_out_and_the_fastest_counts() -> None:
    records = [
        validation("a", 1, 1.0, record_id="r1"),
        validation("a", 1, 3.0, record_id="r2"),
        validation("b", 1, 2.0),
    ]
    answer = match(records, 1)
    assert trace(answer) == "a"
    assert "contradict each other (1000 .. 3000 ms)" in answer.reason


SECS = st.floats(0.001, 10)
TIMES = st.dictionaries(st.integers(1, 16), st.dictionaries(st.sampled_from("abcd"), SECS, min_size=1), min_size=1)
ROWS = st.lists(st.tuples(st.sampled_from([UNTUNED, "a", "b"]), st.integers(1, 8), SECS), min_size=1)
POLICIES = st.builds(Policy, st.sampled_from([How.EXACT, How.NEAR, How.ROBUST]), st.booleans())


def records_of(rows: list[tuple[str, int, float]]) -> list[TuningRecord]:
    return [
        validation(trace, units, secs, record_id=f"{index:032x}") for index, (trace, units, secs) in enumerate(rows)
    ]


@given(TIMES)
def test_no_candidate_measured_everywhere_has_less_regret_than_the_one_chosen(
    times: dict[int, dict[str, float]],
) -> None:
    found = least_regret(times, sorted(times), UNTUNED)
    everywhere = set.intersection(*(set(row) for row in times.values()))
    worst = {c: max(row[c] / min(row.values()) - 1 for row in times.values()) for c in everywhere}
    assert (found is None) == (not worst)
    if found is not None:
        assert found[0] in worst
        assert found[1] == pytest.approx(min(worst.values()))


@given(ROWS)
def test_an_exact_answer_is_never_slower_than_any_other(rows: list[tuple[str, int, float]]) -> None:
    records, units = records_of(rows), rows[0][1]
    answer = match(records, units)
    fastest = min(times_of(records)[units].values())
    if answer.record is None:
        assert min(secs for trace, at, secs in rows if (trace, at) == (UNTUNED, units)) == fastest
    else:
        assert (answer.how, answer.record.median_s) == (How.EXACT, fastest)


@given(ROWS, st.integers(1, 16), POLICIES)
def test_never_slower_than_the_default_at_a_share_that_counted(
    rows: list[tuple[str, int, float]], units: int, policy: Policy
) -> None:
    records = records_of(rows)
    answer = match(records, units, policy)
    if answer.record is None:
        return
    times = times_of(records)
    default = next((r.candidate_id for r in records if r.trace == UNTUNED), "")
    at = answer.record.granted.units
    assert times[at][answer.record.candidate_id] <= times[at].get(default, math.inf)


@given(ROWS, st.integers(1, 16), POLICIES, st.randoms())
def test_order_and_duplicates_change_nothing(
    rows: list[tuple[str, int, float]], units: int, policy: Policy, rng: random.Random
) -> None:
    records = records_of(rows)
    answer = match(records, units, policy)
    shuffled = [*records, records[0]]
    rng.shuffle(shuffled)
    assert repr(match(shuffled, units, policy)) == repr(answer)


def secs_of(answer: Match, records: list[TuningRecord], units: int) -> float:
    """What the answer takes at `units`: the default's time where it is the answer, infinite where that is unknown."""
    if answer.record is not None:
        return times_of(records)[units][answer.record.candidate_id]
    return min((r.median_s for r in records if (r.trace, r.granted.units) == (UNTUNED, units)), default=math.inf)


@given(ROWS, ROWS, POLICIES)
def test_more_records_never_make_an_exact_match_slower(
    rows: list[tuple[str, int, float]], more: list[tuple[str, int, float]], policy: Policy
) -> None:
    units, few, many = rows[0][1], records_of(rows), records_of([*rows, *more])
    assert secs_of(match(many, units, policy), many, units) <= secs_of(match(few, units, policy), few, units)


@given(ROWS, st.integers(1, 16))
def test_a_looser_policy_answers_all_that_a_stricter_one_does(rows: list[tuple[str, int, float]], units: int) -> None:
    records = records_of(rows)
    for strict, loose in pairwise(match(records, units, Policy(how)) for how in (How.EXACT, How.NEAR, How.ROBUST)):
        if strict.record is not None:
            assert loose == strict


MANY = 1000
BOUND = 0.006
"""of a bias, relative; three standard errors of the simulation are less"""
EQUAL = {name: {1: 1.0, 2: 1.0} for name in "abcdef"}
SPECIALISTS = {"one": {1: 1.0, 2: 2.0}, "two": {1: 2.0, 2: 1.0}}
GENERALISTS = {name: {1: 1.2, 2: 1.2} for name in "abcdef"}


def timed(rng: random.Random, finalist: TuningRecord, secs: float) -> TuningRecord:
    """Timed as validations are. Each repeat is disturbed, now and then by a multiple of its time."""
    run_secs = tuple(secs * (1.0 + 0.1 * rng.paretovariate(1.5)) for _ in range(VALIDATION_POLICY.repeats))
    return replace(finalist, run_secs=run_secs)


def matches(rng: random.Random, truth: Mapping[str, Mapping[int, float]], units: int, jobs: int = 1) -> list[Match]:
    """The answers at a share from logs of so many jobs. Each job timed all finalists at all shares; `truth` is seconds
    by finalist and units.
    """
    finalists = [(validation(name, at, secs), secs) for name, row in truth.items() for at, secs in row.items()]
    logs = (tuple(timed(rng, finalist, secs) for _ in range(jobs) for finalist, secs in finalists) for _ in range(MANY))
    return [find_match(ValidatedRecords(log), granted(units), DEVICE.key, TARGET_KEY) for log in logs]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_time_told_of_the_fastest_of_equals_is_what_it_takes(jobs: int) -> None:
    rng = random.Random(0)
    winners = [match.record for match in matches(rng, {name: {1: 1.0} for name in EQUAL}, 1, jobs)]
    again_s = statistics.fmean(timed(rng, winner, 1.0).median_s for winner in winners if winner)
    bias = statistics.fmean(winner.median_s for winner in winners if winner) / again_s - 1.0
    assert abs(bias) <= BOUND
    bias_of_choosing = statistics.fmean(winner.choosing_s for winner in winners if winner) / again_s - 1.0
    assert bias_of_choosing < -3 * BOUND


@pytest.mark.parametrize(("truth", "loss"), [(EQUAL, 0.0), (SPECIALISTS | GENERALISTS, 0.2)])
def test_the_loss_told_of_the_robust_one_is_what_it_loses(
    truth: Mapping[str, Mapping[int, float]], loss: float
) -> None:
    answers = matches(random.Random(0), truth, 8)
    assert {answer.how for answer in answers} == {How.ROBUST}
    assert abs(statistics.fmean(answer.regret for answer in answers) - loss) <= BOUND


def test_exact_leaves_out_what_rounds_otherwise() -> None:
    texts = ["t", text_of("split", "[]"), text_of(WINOGRAD2, "[]")]
    found = ValidatedRecords(tuple(validation(text, 1, 1.0) for text in texts))
    assert [record.trace for record in found.exact.records] == texts[:2]
