"""The number of threads under a limit."""

from __future__ import annotations

import pytest

from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service, loop_per_s
from fractune_core.analysis.cpu_limits.prediction import by_latency, by_rate, paced_rate_per_s, predict, predictable

MINILM = (Service(1, (0.0184,), 0.0184), Service(2, (0.0096,), 0.0192, spin_s=0.0005))


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("quota_m", [500, 1000, 1500, 2500])
@pytest.mark.parametrize("service", [*MINILM, Service(2, (0.0005,), 0.001), Service(4, (0.1,), 0.4)])
def test_the_formula_gives_the_rate_of_the_simulated_loop(service: Service, quota_m: int, replicas: int) -> None:
    limit = CpuLimit(quota_m)
    if predictable(service, limit, replicas):
        simulated_per_s = predict(service, limit, replicas=replicas).per_s
        assert loop_per_s(service, limit, replicas) == pytest.approx(simulated_per_s, rel=0.02)


def test_a_loop_that_no_quota_stops_has_the_models_own_rate() -> None:
    assert loop_per_s(MINILM[0], CpuLimit(1500)) == pytest.approx(1 / 0.0184)


@pytest.mark.parametrize(("quota_m", "by_p99", "in_a_loop"), [(500, 2, 1), (1000, 2, 1), (1500, 2, 2)])
def test_the_best_number_of_threads_is_the_measured_one(quota_m: int, by_p99: int, in_a_loop: int) -> None:
    """Measured of MiniLM (docs/cpu-limits.md): at 500m the p99 are within 10 %, and two threads have the lower p50. A
    loop is faster with one thread at 1000m, 53.6/s to 49.7, and with two at 1500m, 75.9/s to 53.8.
    """
    limit = CpuLimit(quota_m)
    best, other = by_latency(MINILM, limit)
    assert best.threads == by_p99
    assert best.p50_s < other.p50_s
    assert by_rate(MINILM, limit)[0][0] == in_a_loop


def test_a_much_better_p99_counts_more_than_p50() -> None:
    one, two = Service(1, (0.1,), 0.1), Service(2, (0.052,), 0.104)
    best, other = by_latency([two, one], CpuLimit(800))
    assert (best.threads, other.threads) == (1, 2)
    assert best.p50_s > other.p50_s
    assert other.p99_s > 1.1 * best.p99_s


def test_threads_that_cannot_answer_the_rate_are_left_out() -> None:
    services = [Service(1, (0.1,), 0.1), Service(4, (0.025,), 0.1)]
    limit = CpuLimit(3900)
    assert paced_rate_per_s(services, limit) == pytest.approx(0.3 * 39)
    assert [each.threads for each in by_latency(services, limit)] == [4]
    assert [threads for threads, _ in by_rate(services, limit)] == [4, 1]


def test_of_equally_fast_ones_the_fewest_threads() -> None:
    services = [Service(threads, (0.001,), 0.001 * threads) for threads in (2, 1)]
    assert by_latency(services, CpuLimit(3000))[0].threads == 1
    assert by_rate(services, CpuLimit(3000))[0][0] == 1


@pytest.mark.parametrize(("threads", "least_m"), [(1, 10), (2, 500), (4, 1000)])
def test_four_threads_for_each_core_of_the_limit_at_most(threads: int, least_m: int) -> None:
    service = Service(threads, (0.01,), 0.01)
    assert predictable(service, CpuLimit(least_m))
    assert threads == 1 or not predictable(service, CpuLimit(least_m - 1))
