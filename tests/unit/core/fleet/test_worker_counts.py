"""What a worker counted, on its way to the server."""

from __future__ import annotations

import math

from fractune_core.fleet.worker_entries import COUNT, SECS_BOUNDS, CountKey, bucket_of, counts_from_json, counts_to_json

KEY = CountKey("remeasured", "cpu:1", COUNT)


def test_counts_survive_the_way() -> None:
    counts = {KEY: 2.0, CountKey("work_duration", "build", "inf"): 1.0}
    assert counts_from_json(counts_to_json(counts)) == counts


def test_what_another_version_says_otherwise_is_passed_over() -> None:
    others = (["a", "b"], ["a", "b", "c", "1"], ["a", "b", 3, 1], 7, None, ["a", "b", "c", math.inf])
    assert counts_from_json([*others, ["remeasured", "cpu:1", "count", 2]]) == {KEY: 2.0}
    assert [counts_from_json(rows) for rows in (None, 7, {"a": 1})] == [{}] * 3


def test_a_duration_is_in_the_first_bucket_that_holds_it() -> None:
    assert [bucket_of(secs) for secs in (0.0, 0.005, 0.0051, 1e9)] == ["0.005", "0.005", "0.01", "inf"]
    assert list(SECS_BOUNDS) == sorted(SECS_BOUNDS)
