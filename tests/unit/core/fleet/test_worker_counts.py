"""What a worker counted, on its way to the server."""

from __future__ import annotations

from fractune_core.fleet.worker_entries import SECS_BOUNDS, bucket_of


def test_a_duration_is_in_the_first_bucket_that_holds_it() -> None:
    assert [bucket_of(secs) for secs in (0.0, 0.005, 0.0051, 1e9)] == ["0.005", "0.005", "0.01", "inf"]
    assert list(SECS_BOUNDS) == sorted(SECS_BOUNDS)
