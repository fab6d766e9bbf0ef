"""Predictions against latencies that were measured under real limits."""

from __future__ import annotations

import statistics

import pytest

from fractune_core.analysis.cpu_limits.fitting import MARGIN
from tests.support.measured_limits import cells, measured_runs, median_errors


@pytest.mark.parametrize(
    ("threads", "replicas", "least_cells", "most_p50", "most_p99"),
    [(1, 1, 50, 0.05, 0.10), (1, 2, 14, 0.05, 0.10), (2, 1, 8, 0.10, 0.15)],
)
def test_half_of_the_predictions_are_nearer_than_the_bound(
    threads: int, replicas: int, least_cells: int, most_p50: float, most_p99: float
) -> None:
    found = cells(measured_runs(), threads, replicas)
    assert len(found) >= least_cells
    p50, p99 = median_errors(found)
    assert p50 <= most_p50
    assert p99 <= most_p99


def test_with_the_margin_of_a_fit_few_measured_p99_are_above_the_predicted_one() -> None:
    found = [
        cell
        for threads, replicas in ((1, 1), (1, 2), (2, 1))
        for cell in cells(measured_runs(), threads, replicas, slower=MARGIN)
        if cell.rate_per_s is not None
    ]
    assert len(found) >= 40
    _, p99_errors = zip(*(cell.errors() for cell in found), strict=True)
    assert sum(error >= 0 for error in p99_errors) >= 0.85 * len(found)


def test_the_throughput_of_loops_is_predicted() -> None:
    runs = measured_runs()
    loops = [
        cell
        for threads, replicas in ((1, 1), (1, 2), (2, 1))
        for cell in cells(runs, threads, replicas)
        if cell.rate_per_s is None
    ]
    assert len(loops) >= 30
    errors = [abs(cell.throughput_error()) for cell in loops]
    assert statistics.median(errors) <= 0.03
    assert max(errors) <= 0.10
