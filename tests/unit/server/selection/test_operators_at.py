"""The whole cores that stand for a CPU limit where operators are matched."""

from __future__ import annotations

import pytest

from fractune_core.shares import Share
from fractune_server.selection.model_match import operators_at


@pytest.mark.parametrize(
    ("run_secs", "share"),
    [
        ({"untuned": [3.0], "cpu:1": [1.0], "cpu:2": [2.0]}, "cpu:1"),
        ({"untuned": [3.0], "cpu:1": [2.0], "cpu:2": [1.0]}, "cpu:2"),
        ({"untuned": [3.0], "robust": [1.0]}, "cpu:2"),
        ({"untuned": [1.0], "cpu:1": [2.0], "cpu:2": [3.0]}, "cpu:2"),
    ],
)
def test_operators_under_a_limit_are_those_of_whole_cores(run_secs: dict[str, list[float]], share: str) -> None:
    assert operators_at({"run_secs": run_secs}, Share.parse("cpu:1500m")) == share
