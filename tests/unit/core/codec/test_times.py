"""Times of the public contract: seconds since 1970, of the years that a timestamp can name."""

from __future__ import annotations

import math

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from fractune_core.codec.messages import seconds, timestamp
from fractune_core.errors import BadRequest


def test_seconds_come_back() -> None:
    assert seconds(timestamp(1_700_000_000.25)) == pytest.approx(1_700_000_000.25, abs=1e-6)


def test_stamps_and_seconds_that_are_no_time_are_refused() -> None:
    for fields in ({"seconds": 2**63 - 1}, {"seconds": -(2**63)}, {"nanos": 2**31 - 1}, {"nanos": -1}):
        with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
            seconds(Timestamp(**fields))
    for value in (1e12, -1e12, 1e300, math.nan, math.inf):
        with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
            timestamp(value)
