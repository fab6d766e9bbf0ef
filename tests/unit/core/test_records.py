from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import final
from tuner_core.records import Status, TuningRecord, candidate_id, record_id


def test_a_record_survives_json() -> None:
    record = final("trace", 2, 0.25, max_error=None)
    assert TuningRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_failure_has_no_time() -> None:
    failed = final("trace", 2, 0.25, status=Status.CRASHED, run_secs=())
    assert math.isinf(failed.median_s)
    assert failed.spread == 0.0


def test_median_and_spread() -> None:
    record = final("trace", 1, 0.0, run_secs=(1.0, 2.0, 4.0))
    assert (record.median_s, record.spread) == (2.0, pytest.approx(1.5))


@given(st.lists(st.text(), min_size=3, max_size=3, unique=True))
def test_names_tell_candidates_and_measurements_apart(parts: list[str]) -> None:
    first, second, third = parts
    assert candidate_id(first, "k", third) != candidate_id(second, "k", third)
    assert candidate_id("w", "k", first) == candidate_id("w", "k", first)
    assert record_id(first, "c", "cpu:1") != record_id(first, "c", "cpu:2")


@pytest.mark.parametrize("missing", ["device", "granted", "status", "policy"])
def test_a_torn_record_is_an_error(missing: str) -> None:
    data = final("trace", 1, 1.0).to_json()
    del data[missing]
    with pytest.raises(KeyError):
        TuningRecord.from_json(data)
