"""A number that a field of the contract has no room for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fractune_core.codec.messages import from_lists, to_proto
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
