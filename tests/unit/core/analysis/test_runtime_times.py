"""What a log takes as a time of another runtime."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from tests.support.measured_pairs import runtime_time


def test_it_is_the_same_after_a_message_and_after_json() -> None:
    runtime_time().check()
    message = to_proto(runtime_time(), pb.RuntimeTime)
    assert message.model == f"models/{runtime_time().model}"
    assert from_proto(RuntimeTime, message) == runtime_time()
    assert RuntimeTime.from_json(json.loads(json.dumps(runtime_time().to_json()))) == runtime_time()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"time_id": "with spaces in it"}, "time_id must have 8 to 64 letters and digits"),
        ({"share": ""}, "a model, a share and a runtime"),
        ({"version": "v" * 201}, "longer than 200 characters"),
        ({"inputs": {"n" * 201: [1]}}, "longer than 200 characters"),
        ({"inputs": {"ids": [1] * 65}}, "64 axes at most"),
        ({"paced_s": 0.0}, "its times must be above 0 and finite"),
        ({"bundle_loop_s": math.inf}, "its times must be above 0 and finite"),
        ({"paced_ratio": Estimate(1.0, 1.1, 1.2)}, "ratios must be above 0 and finite"),
        ({"measured_at": -1.0}, "measure_time is missing"),
        ({"others_cores": float("inf")}, "others_cores must be 0 or more"),
    ],
)
def test_what_no_measurement_gives_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        runtime_time(**changes).check()
