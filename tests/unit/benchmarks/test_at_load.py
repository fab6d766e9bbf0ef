"""Requests at 30 % load in blocks: how many, when, and what is reported of their latencies."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.support.at_load import at_load_json, blocks_at_load


@pytest.mark.parametrize(
    ("loop_s", "blocks", "size"),
    [
        ((40e-6, 80e-6), 10, 100),  # the most
        ((0.002, 0.003), 10, 22),
        ((0.005, 0.005), 9, 10),
        ((0.02, 0.02), 2, 11),
        ((0.3, 0.3), 2, 3),  # the fewest, which take longer
        ((0.1, 0.01), 2, 11),  # the slower one takes all of its time
    ],
)
def test_the_number_of_requests_follows_from_the_time_they_take(
    loop_s: tuple[float, float], blocks: int, size: int
) -> None:
    assert [len(block) for block in blocks_at_load(loop_s)] == [size] * blocks


def test_the_rate_is_30_percent_of_the_faster_one_s_and_arrivals_follow_from_the_seed() -> None:
    found = blocks_at_load((60e-6, 30e-6))
    assert found == blocks_at_load((30e-6, 60e-6))
    assert sum(block[-1] for block in found) == pytest.approx(1000 * 30e-6 / 0.3, rel=0.1)
    assert all(first[0] != second[0] for first, second in pairwise(found))
    assert all(block == sorted(block) for block in found)


def test_p50_is_of_the_requests_of_all_blocks() -> None:
    ours, theirs = [[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]], [[7.0, 7.0, 7.0], [7.0, 7.0, 8.0]]
    found = at_load_json({"fractune": 0.6, "openvino": 0.3}, {"fractune": ours, "openvino": theirs})
    assert (found["rate_per_s"], found["requests"]) == (pytest.approx(1.0), 6)
    assert found["p50_s"] == {"fractune": 3.5, "openvino": 7.0}
