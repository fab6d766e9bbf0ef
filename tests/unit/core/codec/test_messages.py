"""Numbers and times of the public contract: what a field has no room for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from fractune_core.codec.messages import from_lists, seconds, timestamp, to_proto
from fractune_core.errors import BadRequest
from fractune_core.jobs import JobOptions, JobSpec
from fractune_core.pb import fractune_pb2 as pb


@pytest.mark.parametrize("options", [{"trials": 3_000_000_000}, {"seed": 2**64}, {"round_size": 2**31}])
def test_it_is_a_bad_request_that_names_the_message(options: JobOptions) -> None:
    with pytest.raises(BadRequest, match=r"^JobSpec: .*[Vv]alue"):
        to_proto(JobSpec.requested("m.onnx", "cpu:1", **options), pb.JobSpec)


def test_so_is_a_number_inside_a_list() -> None:
    """Lists are messages of their own, made before the message around them."""
    with pytest.raises(BadRequest, match=r"^JobSpec: .*[Vv]alue"):
        to_proto(replace(JobSpec.requested("m.onnx", "cpu:1"), inputs={"x": [2**63]}), pb.JobSpec)
    with pytest.raises(BadRequest, match=r"^Shape: .*[Vv]alue"):
        from_lists({"x": [2**63]}, pb.Shape)


def test_seconds_come_back() -> None:
    assert seconds(timestamp(1_700_000_000.25)) == pytest.approx(1_700_000_000.25, abs=1e-6)


def test_stamps_and_seconds_that_are_no_time_are_refused() -> None:
    for fields in ({"seconds": 2**63 - 1}, {"seconds": -(2**63)}, {"nanos": 2**31 - 1}, {"nanos": -1}):
        with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
            seconds(Timestamp(**fields))
    for value in (1e12, -1e12, 1e300, math.nan, math.inf):
        with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
            timestamp(value)
