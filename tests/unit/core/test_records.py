from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.fleet.messages import trial_of
from fractune_core.records import (
    COLD,
    FIRST_POLICY,
    TRIAL_POLICY,
    VALIDATION_POLICY,
    WARM,
    Kind,
    Status,
    TimingPolicy,
    TuningRecord,
    candidate_id,
    record_id,
    with_cache,
)
from tests.support.fleet_messages import CONV2D, measure_work
from tests.support.samples import DISTURBANCE, validation


@pytest.mark.parametrize("changes", [{"max_error": None}, {"disturbance": DISTURBANCE, "attempts": 2}])
def test_a_record_survives_json(changes: dict[str, Any]) -> None:
    record = validation("trace", 2, 0.25, **changes)
    assert TuningRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_record_shares_the_keys_of_its_dictionary_with_others() -> None:
    """Python has an own dictionary of five times the size for an object of more than 30 values."""
    record = [validation("trace", 2, 0.25) for _ in range(2)][1]
    assert record.median_s == 0.25
    assert sys.getsizeof(vars(record)) < 500


@pytest.mark.parametrize("policy", [FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY])
def test_a_cold_repeat_is_one_call_so_there_are_more(policy: TimingPolicy) -> None:
    assert with_cache(policy, WARM) is policy
    cold = with_cache(policy, COLD)
    assert (cold.name, cold.cache, cold.min_repeat_ms) == (policy.name, COLD, 0.0)
    assert cold.repeats > policy.repeats
    assert cold.undivided().repeats >= policy.undivided().repeats
    assert bool(cold.choosing) == bool(policy.choosing)


def test_a_failure_has_no_time() -> None:
    failed = validation("trace", 2, 0.25, status=Status.CRASHED, run_secs=())
    assert math.isinf(failed.median_s)
    assert failed.spread == 0.0


def test_median_and_spread() -> None:
    record = validation("trace", 1, 0.0, run_secs=(1.0, 2.0, 4.0), policy=TRIAL_POLICY)
    assert (record.median_s, record.choosing_s) == (2.0, 2.0)
    assert record.spread == pytest.approx(1.5)


def test_what_chose_is_not_reported() -> None:
    policy = TimingPolicy("validation", warmups=1, repeats=6, min_repeat_ms=10.0, choosing=3)
    record = validation("trace", 1, 0.0, run_secs=(0.5, 0.1, 0.2, 1.0, 2.0, 4.0), policy=policy)
    assert (record.choosing_s, record.median_s, record.reported_secs) == (0.2, 2.0, (1.0, 2.0, 4.0))
    assert record.spread == pytest.approx(1.5)
    nothing_left = validation("trace", 1, 0.0, run_secs=(0.5, 0.1, 0.2), policy=policy)
    assert math.isinf(nothing_left.median_s)
    assert policy.undivided() == TimingPolicy("validation", warmups=1, repeats=3, min_repeat_ms=10.0)


def test_in_a_record_of_before_the_same_repeats_chose_and_are_reported() -> None:
    data = validation("trace", 1, 0.0, run_secs=(1.0, 2.0, 4.0)).to_json()
    del data["policy"]["choosing"]
    record = TuningRecord.from_json(data)
    assert (record.choosing_s, record.median_s, record.reported_secs) == (2.0, 2.0, (1.0, 2.0, 4.0))


def test_the_trial_of_a_candidate_that_is_validated_at_once_has_the_repeats_that_choose() -> None:
    policy = replace(VALIDATION_POLICY, repeats=3, choosing=1)
    validated = replace(validation("trace", 2, 0.25), run_secs=(4.0, 1.0, 2.0), policy=policy)
    work = measure_work(CONV2D)
    trial = trial_of(work, validated)
    assert (trial.kind, trial.reported_secs, trial.policy.repeats) == (Kind.TRIAL, (4.0,), 1)
    assert trial.record_id == record_id(work.round.id, validated.candidate_id, validated.share)
    assert validated.reported_secs == (1.0, 2.0)


@given(st.lists(st.text(), min_size=3, max_size=3, unique=True))
def test_names_tell_candidates_and_measurements_apart(parts: list[str]) -> None:
    first, second, third = parts
    assert candidate_id(first, "k", third) != candidate_id(second, "k", third)
    assert candidate_id("w", "k", first) == candidate_id("w", "k", first)
    assert record_id(first, "c", "cpu:1") != record_id(first, "c", "cpu:2")


@pytest.mark.parametrize("part", ["device", "granted", "policy", "disturbance", "status"])
def test_a_torn_record_is_an_error(part: str) -> None:
    data = validation("trace", 1, 1.0).to_json()
    for torn in ([], "device", 1, ["name"], {"steal_s": 1.0}):
        with pytest.raises(ValueError, match=r"\$\.|missing required field"):
            TuningRecord.from_json({**data, part: torn})
    if part != "disturbance":  # it may be missing
        with pytest.raises(ValueError, match=r"\$\."):
            TuningRecord.from_json({**data, part: None})
        del data[part]
        with pytest.raises(ValueError, match="missing required field"):
            TuningRecord.from_json(data)
