"""Latency under CPU limits from times at whole cores. MiniLM-L3 was measured (docs/cpu-limits.md)."""

from __future__ import annotations

import pytest

from fractune.features.knee.report import limit_latencies, limits_table, split_limits
from fractune_core.errors import BadRequest

SECS = {1: [0.0184] * 3, 2: [0.0096] * 3}


def test_limits_are_told_apart_from_shares_at_which_a_model_is_timed() -> None:
    assert split_limits("cpu:1,cpu:1500m,cpu:2, cpu:500m") == (["cpu:1", "cpu:2"], ["cpu:1500m", "cpu:500m"])
    assert split_limits(["mps:25", "full"]) == (["mps:25", "full"], [])


@pytest.mark.parametrize("shares", ["cpu:500m", "cpu:400m,cpu:2,cpu:4", "cpu:500m,mps:25", "cpu:500m@1,cpu:2,cpu:4"])
def test_a_limit_needs_a_time_with_few_enough_threads(shares: str) -> None:
    with pytest.raises(BadRequest, match=r"is predicted from times at whole cores: name cpu:1 and cpu:2 too$"):
        split_limits(shares)


def test_each_limit_has_its_best_number_of_threads() -> None:
    """Measured: p50 and p99 are 11 and 79 ms at 500m, 11 and 28 ms at 1000m with two threads; loops have 26.9/s with
    one thread at 500m, and 75.9/s with two at 1500m.
    """
    found = limit_latencies(SECS, ["cpu:1500m", "cpu:500m", "cpu:1000m", "cpu:400m", "cpu:900m@1"])
    assert [each.share for each in found] == ["cpu:400m", "cpu:500m", "cpu:900m@1", "cpu:1000m", "cpu:1500m"]
    assert [each.threads for each in found] == [1, 2, 1, 2, 2]
    below, half, _, one, more = found
    assert half.p50_s == pytest.approx(0.0098, rel=0.05)
    assert one.p99_s == pytest.approx(0.0255, rel=0.1)
    assert half.loop_per_s == pytest.approx(26.9, rel=0.05)
    assert more.loop_per_s == pytest.approx(75.9, rel=0.05)
    assert below.p99_s > half.p99_s > one.p99_s
    assert below.rate_per_s < half.rate_per_s < one.rate_per_s


def test_latencies_by_disturbed_times_are_the_most() -> None:
    cells = limits_table("minilm", limit_latencies(SECS, ["cpu:1500m"], disturbed=True)).cells
    assert [cell[:3] for cell in cells[0][3:]] == ["<= ", "<= ", ">= "]


def test_the_table_says_that_nothing_ran_under_a_limit() -> None:
    table = limits_table("minilm", limit_latencies(SECS, ["cpu:1500m"]))
    assert table.title == "minilm: under CPU limits, predicted at 30 % load"
    assert table.cells[0][:2] == ("cpu:1500m", "2")
    assert table.notes[0].startswith("nothing ran under a limit")
    assert table.rows[0]["share"] == "cpu:1500m"
