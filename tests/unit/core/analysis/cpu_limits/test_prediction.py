"""What is said of a model under a limit, and for which values nothing is said."""

from __future__ import annotations

import math

import pytest

from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service, capacity_per_s, least_quota_m
from fractune_core.analysis.cpu_limits.prediction import enough_requests, p99_spread, percentile, predict
from fractune_core.errors import BadRequest

ONE_THREAD = Service(1, (0.018,), 0.018)
TWO_THREADS = Service(2, (0.010,), 0.020)


def test_a_run_has_many_requests_and_many_periods() -> None:
    assert enough_requests(10.0, 100_000) == 10_000
    assert enough_requests(2_300.0, 100_000) == 46_000
    assert enough_requests(2_300.0, 10_000, least=4_000) == 4_600


def test_percentiles_of_a_loop() -> None:
    found = predict(ONE_THREAD, CpuLimit(250, tick_s=0.0), requests=2_000)
    assert (found.p50_s, found.p95_s, found.p99_s) == pytest.approx((0.093, 0.093, 0.093))
    assert found.mean_s == pytest.approx(0.018 / 0.25, rel=0.01)
    assert found.per_s == pytest.approx(0.25 / 0.018, rel=0.01)
    assert found.stopped == pytest.approx(0.75, rel=0.01)


def test_a_load_is_a_part_of_the_capacity() -> None:
    limit = CpuLimit(1000)
    rate_per_s = 0.5 * capacity_per_s(ONE_THREAD, limit)
    found = predict(ONE_THREAD, limit, rate_per_s=rate_per_s)
    assert found.per_s == pytest.approx(rate_per_s, rel=0.05)
    assert 0.018 <= found.p50_s < found.p95_s < found.p99_s


def test_the_capacity_is_bound_by_the_limit_or_by_the_replicas() -> None:
    assert capacity_per_s(ONE_THREAD, CpuLimit(500)) == pytest.approx(0.5 / 0.018)
    assert capacity_per_s(ONE_THREAD, CpuLimit(1500)) == pytest.approx(1 / 0.018)
    assert capacity_per_s(ONE_THREAD, CpuLimit(1500), 2) == pytest.approx(1.5 / 0.018)


def test_several_runs_give_the_worst_p99_and_the_mean_of_all() -> None:
    apart = [predict(ONE_THREAD, CpuLimit(500), rate_per_s=19.0, requests=1_000, seeds=[seed]) for seed in range(3)]
    joint = predict(ONE_THREAD, CpuLimit(500), rate_per_s=19.0, requests=1_000, seeds=range(3))
    assert len({each.p99_s for each in apart}) == 3
    assert joint.worst_p99_s == max(each.p99_s for each in apart)
    assert joint.p99_s == pytest.approx(sum(each.p99_s for each in apart) / 3)
    assert joint.p50_s == pytest.approx(sum(each.p50_s for each in apart) / 3)


def test_the_p99_of_more_requests_varies_less() -> None:
    def spread(requests: int) -> tuple[float, float]:
        return p99_spread(ONE_THREAD, CpuLimit(500), replicas=1, rate_per_s=10.0, requests=requests)

    (few_low, few_high), (low, high) = spread(200), spread(2_000)
    assert few_low < low < 1 < high < few_high
    assert high - low < 0.5


def test_a_slower_service_takes_longer_in_every_way() -> None:
    service = Service(2, (0.25, 0.5), 0.75, (0.5,), spin_s=0.0005)
    assert service.slower(0.5) == Service(2, (0.375, 0.75), 1.125, (0.75,), spin_s=0.0005)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([5.0], 0.0) == 5.0


def test_threads_need_five_slices_each_in_a_period() -> None:
    assert [least_quota_m(threads, 100_000) for threads in (1, 2, 3)] == [10, 500, 750]
    assert least_quota_m(2, 10_000) == 5_000
    predict(TWO_THREADS, CpuLimit(500), requests=100)
    with pytest.raises(BadRequest, match=r"^2 threads under a limit of 450m: .*, or at least 500m$"):
        predict(TWO_THREADS, CpuLimit(450), requests=100)
    with pytest.raises(BadRequest, match="at least 500m"):
        predict(ONE_THREAD, CpuLimit(450), replicas=2, requests=100)
    predict(ONE_THREAD, CpuLimit(50), requests=100)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"quota_m": 9}, "take at least 10m"),
        ({"quota_m": 500, "period_us": 999}, "take 1000 to 1000000"),
        ({"quota_m": 500, "burst_us": 50_001}, "take 0 to 50000 us"),
        ({"quota_m": 500, "burst_us": -1}, "take 0 to 50000 us"),
    ],
)
def test_a_limit_that_the_kernel_refuses_is_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        CpuLimit(**values)


@pytest.mark.parametrize("times", [(0, (0.01,), 0.01), (1, (), 0.01), (1, (0.01, 0.0), 0.01), (1, (0.01,), 0.0)])
def test_a_service_without_times_is_refused(times: tuple[int, tuple[float, ...], float]) -> None:
    with pytest.raises(BadRequest):
        Service(*times)


@pytest.mark.parametrize(
    "wrong", [{"rate_per_s": 0.0}, {"rate_per_s": math.nan}, {"requests": 0}, {"seeds": ()}, {"replicas": 0}]
)
def test_numbers_that_are_not_positive_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        predict(ONE_THREAD, CpuLimit(500), **wrong)  # type: ignore[arg-type]
