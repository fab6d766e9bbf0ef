"""The simulation of a limit, where the results follow from arithmetic or from queueing theory."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service
from fractune_core.analysis.cpu_limits.prediction import Budget, serve
from fractune_core.served import poisson

ONE_THREAD = Service(1, (0.018,), 0.018)
TWO_THREADS = Service(2, (0.010,), 0.020)


def without_ticks(quota_m: int, **changes: int) -> CpuLimit:
    return CpuLimit(quota_m, tick_s=0.0, **changes)


def test_waiting_without_throttling_is_what_queueing_theory_says() -> None:
    """One server, always as long: a mean wait of s * rho / (2 (1 - rho)) (Pollaczek, Khinchine)."""
    arrivals = poisson(0.7 / 0.018, 60_000, random.Random(3))
    run = serve(ONE_THREAD, CpuLimit(2000), 1, len(arrivals), arrivals, 0)
    assert run.stopped_s == 0
    assert statistics.fmean(run.latencies_s) - 0.018 == pytest.approx(0.018 * 0.7 / (2 * 0.3), rel=0.08)


def test_a_loop_under_half_a_core_waits_for_half_of_each_period() -> None:
    run = serve(ONE_THREAD, without_ticks(500), 1, 2_000, None, 0)
    assert len(run.latencies_s) / run.elapsed_s == pytest.approx(0.5 / 0.018, rel=0.01)
    assert run.stopped_s / run.elapsed_s == pytest.approx(0.5, rel=0.01)
    assert {round(1e3 * each, 6) for each in run.latencies_s[50:]} == {18.0, 68.0}


def test_replicas_share_the_budget() -> None:
    run = serve(ONE_THREAD, without_ticks(1000), 4, 4_000, None, 0)
    assert len(run.latencies_s) / run.elapsed_s == pytest.approx(1 / 0.018, rel=0.01)
    assert run.stopped_s / run.elapsed_s == pytest.approx(0.75, rel=0.01)


def test_a_stopped_team_loses_what_its_other_threads_hold() -> None:
    """Half a slice of each other thread in each period of 100 ms."""
    run = serve(TWO_THREADS, without_ticks(1000), 1, 10_000, None, 0)
    assert len(run.latencies_s) / run.elapsed_s == pytest.approx((0.1 - 0.0025) / 0.020 / 0.1, rel=0.01)


def test_the_way_to_the_tick_is_paid_by_the_next_period() -> None:
    """Ticks move stops, and the throughput stays what the quota allows."""
    run = serve(ONE_THREAD, CpuLimit(500), 1, 5_000, None, 0)
    assert len(run.latencies_s) / run.elapsed_s == pytest.approx(0.5 / 0.018, rel=0.01)
    assert 0.070 < max(run.latencies_s) <= 0.072
    assert len({round(1e3 * each) for each in run.latencies_s}) > 2


def test_a_request_after_a_pause_takes_a_paced_time_and_one_after_a_stop_is_as_cold() -> None:
    service = Service(1, (0.018,), 0.018, paced_wall_s=(0.020,))
    paced = serve(service, CpuLimit(1000), 1, 2, [0.0, 1.0], 0)
    assert paced.latencies_s == pytest.approx([0.020, 0.020])
    looped = serve(service, without_ticks(500), 1, 200, None, 0)
    assert {round(1e3 * each, 6) for each in looped.latencies_s[50:]} == {18.0, 70.0}


def test_spinning_burns_the_budget() -> None:
    arrivals = poisson(9.0, 4_000, random.Random(1))
    spinning = Service(2, (0.010,), 0.020, spin_s=0.020)
    sleeps, spins = (serve(each, CpuLimit(500), 1, 4_000, arrivals, 0) for each in (TWO_THREADS, spinning))
    assert sleeps.stopped_s / sleeps.elapsed_s < 0.03
    assert spins.stopped_s > 4 * sleeps.stopped_s
    assert statistics.median(spins.latencies_s) > statistics.median(sleeps.latencies_s)


def test_a_burst_keeps_what_was_not_used() -> None:
    arrivals = poisson(20.0, 4_000, random.Random(1))
    plain, burst = (
        sorted(serve(ONE_THREAD, CpuLimit(500, burst_us=burst_us), 1, 4_000, arrivals, 0).latencies_s)
        for burst_us in (0, 50_000)
    )
    assert burst[3960] < 0.7 * plain[3960]


def test_the_seed_decides_everything() -> None:
    service = Service(1, (0.017, 0.018, 0.019), 0.018)
    arrivals = poisson(20.0, 500, random.Random(1))
    first, same, other = (serve(service, CpuLimit(500), 1, 500, arrivals, seed) for seed in (1, 1, 2))
    assert first == same
    assert first != other


@given(
    st.lists(st.floats(0, 3), max_size=40).map(sorted),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(250, 3000),
    st.floats(0, 0.02),
    st.integers(0, 1000),
)
def test_every_request_is_answered_and_no_more_is_burned_than_allowed(
    arrivals: list[float], threads: int, replicas: int, quota_m: int, spin_s: float, seed: int
) -> None:
    service = Service(threads, (0.03,), 0.03 * threads, spin_s=spin_s)
    run = serve(service, CpuLimit(quota_m), replicas, len(arrivals), arrivals, seed)
    assert len(run.latencies_s) == len(arrivals)
    assert all(each >= 0.03 * (1 - 1e-9) for each in run.latencies_s)
    begun_periods = run.elapsed_s / 0.1 + 2
    overrun_s = 0.004 * threads * replicas
    assert len(arrivals) * service.cpu_s <= begun_periods * quota_m / 1000 * 0.1 + overrun_s + 1e-9


def test_a_budget_is_full_again_after_a_rest_and_not_above() -> None:
    budget = Budget(without_ticks(500), 1, random.Random(0))
    for begin in (0.0, 10.0):
        budget.burn(0.0, begin, begin + 5.0)
        stop = budget.burn(1.0, begin + 5.0, begin + 6.0)
        # The rest of this period and the whole quota of the next are the most in one go.
        assert 0.05 - 1e-9 <= stop - begin - 5.0 <= 0.1
