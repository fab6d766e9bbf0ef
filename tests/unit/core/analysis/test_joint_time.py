"""One time over several shares."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.records import joint_time_s

TIMES = st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=6)


@given(TIMES, st.floats(1e-3, 1e3))
def test_a_unit_of_time_at_one_share_changes_no_order(times: list[float], factor: float) -> None:
    scaled = joint_time_s([times[0] * factor, *times[1:]])
    assert scaled == pytest.approx(joint_time_s(times) * factor ** (1 / len(times)))


@given(TIMES, st.sampled_from([0.0, math.inf]))
def test_a_failure_at_any_share_is_one_of_the_whole(times: list[float], failure: float) -> None:
    assert joint_time_s([*times, failure]) == 0.0


def test_no_time_is_an_error() -> None:
    assert joint_time_s([1.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(statistics.StatisticsError):
        joint_time_s([])
