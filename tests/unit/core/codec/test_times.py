"""Times of the public contract: seconds since 1970, of the years that a timestamp can name."""

from __future__ import annotations

import math

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from fractune_core.codec.messages import seconds, timestamp
from fractune_core.errors import BadRequest


def test_seconds_come_back() -> None:
    assert seconds(timestamp(1_700_000_000.25)) == pytest.approx(1_700_000_000.25, abs=1e-6)


@pytest.mark.parametrize(
    "stamp",
    [Timestamp(seconds=2**63 - 1), Timestamp(seconds=-(2**63)), Timestamp(nanos=2**31 - 1), Timestamp(nanos=-1)],
)
def test_a_stamp_that_is_no_time_is_refused(stamp: Timestamp) -> None:
    with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
        seconds(stamp)


@pytest.mark.parametrize("value", [1e12, -1e12, 1e300, math.nan, math.inf])
def test_seconds_that_no_stamp_can_hold_are_refused(value: float) -> None:
    with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
        timestamp(value)
