"""Latency and throughput of a model under a CPU limit."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service, capacity_per_s, least_quota_m, threads_text
from fractune_core.analysis.cpu_limits.simulation import Served, serve
from fractune_core.arrivals import poisson
from fractune_core.errors import BadRequest

REQUESTS = 10_000
_PERIODS = 200
"""of a run at least: fast requests are stopped in few of them, and a stop can lead to others"""
_SPREAD_RUNS, _SPREAD_LEVEL = 100, 0.95
_WARM_UP = 0.1
"""of the requests, after the empty start, which are not counted"""


@dataclass(frozen=True)
class Prediction:
    """Latencies from the arrival of a request to its end, in seconds; those of several runs are means."""

    p50_s: float
    p95_s: float
    p99_s: float
    mean_s: float
    per_s: float
    """requests a second"""
    stopped: float
    """fraction of the time in which the limit stopped the model"""
    worst_p99_s: float
    """of the runs: what chance does to `p99_s`"""


def predict(
    service: Service,
    limit: CpuLimit,
    *,
    replicas: int = 1,
    rate_per_s: float | None = None,
    requests: int | None = None,
    seeds: Sequence[int] = (0,),
) -> Prediction:
    """The results of Poisson arrivals at a rate; without a rate, of replicas that each answer requests in a loop. One
    run for each seed, of 10,000 requests or 200 periods: the same arguments give the same results.

    A load is a part of `capacity_per_s`. At a rate above the capacity latencies grow with the number of requests.
    Raises BadRequest for a limit too small for the threads, and for a rate or a number that is not positive.
    """
    check(service, limit, replicas)
    if rate_per_s is not None and not 0 < rate_per_s < math.inf:
        raise BadRequest(f"rate is {rate_per_s:g}; it must be above 0")
    if requests is None:
        requests = enough_requests(rate_per_s or capacity_per_s(service, limit, replicas), limit.period_us)
    if requests < 1 or not seeds:
        raise BadRequest(f"{requests} requests for each of {len(seeds)} seeds; take at least 1 of both")
    runs = []
    for seed in seeds:
        arrivals = None if rate_per_s is None else poisson(rate_per_s, requests, random.Random(seed))
        runs.append(serve(service, limit, replicas, requests, arrivals, seed))
    return summary(runs)


def p99_spread(
    service: Service, limit: CpuLimit, *, replicas: int, rate_per_s: float, requests: int
) -> tuple[float, float]:
    """The spread of the p99 of `requests` requests by chance: 95 % of such p99 lie between these two multiples of the
    p99 of all requests. From 100 simulated runs with different Poisson arrivals.
    """
    latencies, p99s_s = list[float](), list[float]()
    for seed in range(_SPREAD_RUNS):
        arrivals = poisson(rate_per_s, requests, random.Random(seed))
        run = serve(service, limit, replicas, requests, arrivals, seed)
        p99s_s.append(percentile(run.latencies_s, 0.99))
        latencies += run.latencies_s
    p99_of_all_s, beyond = percentile(latencies, 0.99), (1 - _SPREAD_LEVEL) / 2
    return percentile(p99s_s, beyond) / p99_of_all_s, percentile(p99s_s, 1 - beyond) / p99_of_all_s


def enough_requests(rate_per_s: float, period_us: int, least: int = REQUESTS) -> int:
    """Number of requests of a simulated run at that rate: enough for many periods of the limit, at least `least`."""
    return max(least, math.ceil(_PERIODS * rate_per_s * period_us / 1e6))


def check(service: Service, limit: CpuLimit, replicas: int) -> None:
    """Raises BadRequest where the model's replicas cannot be predicted under the limit."""
    if replicas < 1:
        raise BadRequest(f"{replicas} replicas; take at least 1")
    threads = service.threads * replicas
    least_m = least_quota_m(threads, limit.period_us, limit.slice_s)
    if limit.quota_m < least_m:
        raise BadRequest(
            f"{threads_text(threads)} under a limit of {limit.quota_m}m: no prediction holds for so few slices of the"
            f" budget a period; take fewer threads, or at least {least_m}m"
        )


def summary(runs: Sequence[Served]) -> Prediction:
    """Of runs that differ by chance alone."""
    p99s_s = [p99_s(run) for run in runs]
    return Prediction(
        p50_s=statistics.fmean(percentile(_counted(run), 0.5) for run in runs),
        p95_s=statistics.fmean(percentile(_counted(run), 0.95) for run in runs),
        p99_s=statistics.fmean(p99s_s),
        mean_s=statistics.fmean(statistics.fmean(_counted(run)) for run in runs),
        per_s=statistics.fmean(len(run.latencies_s) / run.elapsed_s for run in runs),
        stopped=statistics.fmean(run.stopped_s / run.elapsed_s for run in runs),
        worst_p99_s=max(p99s_s),
    )


def p99_s(run: Served) -> float:
    return percentile(_counted(run), 0.99)


def percentile(values: Iterable[float], part: float) -> float:
    """The least of the values that is at least as large as that part of them."""
    in_order = sorted(values)
    return in_order[max(1, math.ceil(part * len(in_order))) - 1]


def _counted(run: Served) -> list[float]:
    return run.latencies_s[int(_WARM_UP * len(run.latencies_s)) :]
