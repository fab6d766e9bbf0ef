"""The benchmark of the queue sends work that workers of this version accept."""

from __future__ import annotations

from benchmarks.queue_cost import costs_of
from fractune_core.fleet.messages import CPU_BATCH


def test_all_results_come_back() -> None:
    costs = costs_of(candidates=CPU_BATCH, rounds=1)
    assert {batch: len(found) for batch, found in costs.items()} == {1: 1, CPU_BATCH: 1}
