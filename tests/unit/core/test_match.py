"""Which record is used at a share, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import DEVICE, TARGET_KEY, final, granted
from tuner_core.match import How, Match, best_times, find_match, least_regret
from tuner_core.records import UNTUNED, Kind, Status, TuningRecord


def match(records: list[TuningRecord], units: int) -> Match:
    return find_match(records, granted(units), DEVICE.key, TARGET_KEY)


def test_the_fastest_at_the_very_share() -> None:
    answer = match([final("a", 1, 3.0), final("b", 1, 2.0), final("c", 2, 1.0)], 1)
    assert (answer.how, answer.regret) == (How.EXACT, 0.0)
    assert answer.record is not None
    assert answer.record.trace == "b"


def test_a_near_share_takes_what_loses_least_on_both_sides() -> None:
    records = [final("a", 2, 1.0), final("a", 4, 2.0), final("b", 2, 1.1), final("b", 4, 1.0)]
    answer = match(records, 3)
    assert answer.how is How.NEAR
    assert answer.record is not None
    assert answer.record.trace == "b"
    assert answer.regret == pytest.approx(0.1)
    assert "10.0%" in answer.reason


def test_far_from_every_measured_share_the_robust_one() -> None:
    records = [final("a", 1, 1.0), final("a", 2, 5.0), final("b", 1, 1.2), final("b", 2, 1.0)]
    answer = match(records, 16)
    assert answer.how is How.ROBUST
    assert answer.record is not None
    assert answer.record.trace == "b"


def test_the_untuned_default_may_win() -> None:
    answer = match([final(UNTUNED, 1, 1.0), final("a", 1, 2.0)], 1)
    assert (answer.how, answer.record) == (How.NONE, None)
    assert "untuned default" in answer.reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": Kind.TRIAL}, "no published"),
        ({"status": Status.WRONG_OUTPUT}, "no published"),
        ({"device": replace(DEVICE, isa="zen4")}, "another device"),
        ({"target_key": "other"}, "another target"),
        ({"granted": granted(1, "mps")}, "never measured under"),
    ],
)
def test_a_mismatch_is_a_miss_said_aloud(changes: dict[str, object], says: str) -> None:
    answer = match([final("a", 1, 1.0, **changes)], 1)
    assert (answer.how, answer.record) == (How.NONE, None)
    assert says in answer.reason


def test_the_newest_measurement_counts() -> None:
    records = [final("a", 1, 1.0, measured_at=1.0), final("a", 1, 3.0, measured_at=2.0), final("b", 1, 2.0)]
    answer = match(records, 1)
    assert answer.record is not None
    assert answer.record.trace == "b"


TIMES = st.dictionaries(
    st.integers(1, 16), st.dictionaries(st.sampled_from("abcd"), st.floats(0.001, 10), min_size=1), min_size=1
)


@given(TIMES)
def test_no_candidate_measured_everywhere_has_less_regret_than_the_one_chosen(
    times: dict[int, dict[str, float]],
) -> None:
    chosen, regret = least_regret(times, sorted(times))
    everywhere = set.intersection(*(set(row) for row in times.values()))
    worst = {c: max(row[c] / min(row.values()) - 1 for row in times.values()) for c in everywhere}
    assert regret >= 0
    if worst:
        assert chosen in worst
        assert regret == pytest.approx(min(worst.values()))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8), st.floats(0.001, 10)), min_size=1))
def test_an_exact_answer_is_never_slower_than_any_other(rows: list[tuple[str, int, float]]) -> None:
    records = [final(trace, units, secs, measured_at=float(i)) for i, (trace, units, secs) in enumerate(rows)]
    units = rows[0][1]
    answer = match(records, units)
    assert answer.record is not None
    assert answer.how is How.EXACT
    assert answer.record.median_s == min(best_times(records)[units].values())
