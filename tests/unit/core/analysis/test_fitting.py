"""The least limit for a rate and a p99."""

import statistics
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.analysis import limit_fitting
from fractune_core.analysis.limit_fitting import MARGIN, Goal, fit
from fractune_core.analysis.limit_prediction import predict
from fractune_core.cpu_limits import CpuLimit, Service, least_quota_m
from fractune_core.errors import BadRequest
from tests.support.measured_limits import cells, measured_runs, median_errors

MINILM = (
    Service(1, (0.0183,), 0.0184, (0.0190,)),
    Service(2, (0.0096,), 0.0192, (0.0102,), spin_s=0.0005),
)
GOAL = Goal(rate_per_s=18, p99_s=0.05, cores=2)


@pytest.fixture
def roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a quarter of the requests, where the number that is found does not matter."""
    monkeypatch.setattr(limit_fitting, "_REQUESTS", 1_000)


def test_each_alternative_keeps_the_goal_and_a_step_less_does_not() -> None:
    """Of MiniLM at 18/s, measured: 37 ms with 2 replicas at 900m, and 33 ms with 2 threads at 1000m."""
    services = {service.threads: service for service in MINILM}
    found = fit(MINILM, GOAL)
    assert {(each.threads, each.replicas) for each in found} == {(1, 2), (2, 1)}
    for each in found:
        assert 750 <= each.limit.quota_m <= 1000
        assert each.limit.quota_m % 50 == 0
        assert each.prediction.worst_p99_s < each.safe_p99_s <= GOAL.p99_s
        assert each.prediction.per_s == pytest.approx(18, rel=0.05)
        less = predict(
            services[each.threads].slower(GOAL.margin),
            CpuLimit(each.limit.quota_m - 50),
            replicas=each.replicas,
            rate_per_s=18,
            requests=4_000,
            seeds=range(5),
        )
        assert less.worst_p99_s > GOAL.p99_s
    assert found == sorted(found, key=lambda each: each.limit.quota_m)


@pytest.mark.long
def test_the_step_and_the_margin() -> None:
    goal = Goal(rate_per_s=10, p99_s=0.08, cores=2)
    fine, coarse = (fit(MINILM[:1], replace(goal, step_m=step_m))[0].limit.quota_m for step_m in (10, 100))
    assert coarse == -(-fine // 100) * 100
    assert fit(MINILM[:1], replace(goal, margin=0.5))[0].limit.quota_m > fine


def test_a_burst_allows_a_smaller_limit() -> None:
    found = fit(MINILM[:1], Goal(rate_per_s=10, p99_s=0.08, cores=1, bursts=(0.0, 1.0)))
    assert [each.limit.burst_us > 0 for each in found] == [True, False]
    assert found[0].limit.burst_us == found[0].limit.quota_us


@pytest.mark.long
def test_a_burst_is_left_out_where_it_allows_no_smaller_limit() -> None:
    """A rate so low that the least limit of the threads would do."""
    found = fit(MINILM, Goal(rate_per_s=2, p99_s=5.0, cores=2, bursts=(1.0, 0.0)))
    assert [each.limit.burst_us for each in found] == [0, 0]


@pytest.mark.usefixtures("roughly")
def test_more_replicas_are_listed_only_with_a_smaller_limit() -> None:
    found = fit(MINILM[:1], Goal(rate_per_s=18, p99_s=0.2, cores=8))
    by_replicas = sorted(found, key=lambda each: each.replicas)
    limits = [each.limit.quota_m for each in by_replicas]
    assert limits == sorted(set(limits), reverse=True)


@pytest.mark.long
def test_fast_requests_are_simulated_for_many_periods() -> None:
    """92 % of 500m: a stop costs the team time that the next periods lack, but 4,000 requests see no stop."""
    team = Service(2, (1e-4,), 2e-4)
    (found,) = fit([team], Goal(rate_per_s=2_300, p99_s=0.005, cores=2, step_m=500))
    assert found.limit.quota_m == 1_000


@pytest.mark.usefixtures("roughly")
def test_no_limit_is_too_small_for_its_threads() -> None:
    """A rate so low that any limit would do."""
    found = fit(MINILM, Goal(rate_per_s=2, p99_s=5.0, cores=2))
    assert {each.threads for each in found} == {1, 2}
    for each in found:
        assert each.limit.quota_m >= least_quota_m(each.threads * each.replicas, 100_000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"p99_s": 0.005}, r"a p99 of 5 ms is less than one inference takes: 9\.6 ms with 2 threads; ask for more"),
        ({"p99_s": 1e-6}, r"a p99 of 0\.001 ms is less than .* takes: 9\.6 ms .*; ask for more than 10\.4 ms"),
        ({"rate_per_s": 500}, r"500 requests/s are more than 2 cores can answer \(100\.6/s\); ask for at most 98\.6/s"),
        ({"rate_per_s": 40, "p99_s": 0.02}, "no limit keeps a p99 of 20 ms at 40/s on 2 cores; the nearest is .*: ask"),
        ({"period_us": 10_000, "rate_per_s": 60}, "no .* take longer periods, a smaller step or more cores$"),
    ],
)
def test_what_cannot_be_kept_says_what_would_do(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=f"^{words}"):
        fit(MINILM, replace(GOAL, **change))


@pytest.mark.usefixtures("roughly")
def test_the_p99_that_an_error_asks_for_can_be_kept() -> None:
    goal = Goal(rate_per_s=40, p99_s=0.02, cores=2)
    with pytest.raises(BadRequest) as raised:
        fit(MINILM, goal)
    asked_ms = float(str(raised.value).partition(": ask for ")[2].partition(" ms")[0])
    assert fit(MINILM, replace(goal, p99_s=asked_ms / 1e3))


@pytest.mark.usefixtures("roughly")
def test_threads_that_do_not_fit_are_left_out() -> None:
    assert {each.threads for each in fit(MINILM, Goal(rate_per_s=10, p99_s=0.2, cores=1))} == {1}
    with pytest.raises(BadRequest, match=r"^no measured number of threads \(2\) is for 1 core; "):
        fit(MINILM[1:], Goal(rate_per_s=10, p99_s=0.2, cores=1))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rate_per_s": 0}, {"rate_per_s": float("nan")}, {"p99_s": -1}, {"cores": 0}, {"margin": -0.1}),
        *({"step_m": 0}, {"step_m": 3000}, {"bursts": (2.0,)}, {"bursts": ()}),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"must be|give"):
        replace(GOAL, **wrong)


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
