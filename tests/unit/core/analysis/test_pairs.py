"""What a log takes as a measured pair."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.analysis.pairs import MeasuredPair, PairedModel
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from tests.support.measured_pairs import measured_pair


def test_it_is_the_same_after_a_message_and_after_json() -> None:
    bubble = PairedModel("bubble:32MiB", "cpu:1")
    for pair in (measured_pair(), measured_pair(models=(measured_pair().models[0], bubble), stp=None, verdict="")):
        pair.check()
        assert from_proto(MeasuredPair, to_proto(pair, pb.MeasuredPair)) == pair
        assert MeasuredPair.from_json(json.loads(json.dumps(pair.to_json()))) == pair


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pair_id": "short"}, "pair_id must have 8 to 64 letters and digits"),
        ({"pair_id": "with spaces in it"}, "pair_id must have 8 to 64 letters and digits"),
        ({"host": "h" * 201}, "longer than 200 characters"),
        ({"models": measured_pair().models[:1]}, "two models, each with a name and a share"),
        ({"models": (PairedModel("", "cpu:1"), PairedModel("b", "cpu:1"))}, "two models, each with a name and a share"),
        ({"stp": Estimate(1.0, 1.1, 1.2)}, "ratios must be above 0 and finite"),
        ({"stp": Estimate(math.nan, math.nan, math.nan)}, "ratios must be above 0 and finite"),
        ({"stp": Estimate(1.0, 0.9, math.inf)}, "ratios must be above 0 and finite"),
        (
            {"models": tuple(replace(each, slowdown=Estimate(0.0, 0.0, 0.0)) for each in measured_pair().models)},
            "ratios",
        ),
        ({"rounds": 0}, "rounds is 0"),
        ({"measured_at": 0.0}, "measure_time is missing"),
        ({"others_cores": float("inf")}, "others_cores must be 0 or more"),
    ],
)
def test_what_no_measurement_gives_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        measured_pair(**changes).check()
