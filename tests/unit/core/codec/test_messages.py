"""A number that a field of the contract has no room for."""

from __future__ import annotations

import pytest

from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadRequest
from fractune_core.jobs import JobSpec
from fractune_core.pb import fractune_pb2 as pb


@pytest.mark.parametrize("options", [{"trials": 3_000_000_000}, {"seed": 2**64}, {"round_size": 2**31}])
def test_it_is_a_bad_request_that_names_the_message(options: dict[str, int]) -> None:
    with pytest.raises(BadRequest, match=r"^JobSpec: .*[Vv]alue"):
        to_proto(JobSpec.requested("m.onnx", "cpu:1", **options), pb.JobSpec)
