"""The number of threads for a model under a CPU limit, by its times with each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service, capacity_per_s, least_quota_m, loop_per_s
from fractune_core.analysis.cpu_limits.prediction import predict
from fractune_core.arrivals import LOAD

P99_MARGIN = 0.1
"""Predicted p99 that differ by less count as equal (docs/cpu-limits.md has the errors)"""
_MOST_LOAD = 0.98
"""of what a number of threads can answer: nearer to it no latency is predicted"""
_REQUESTS = 1_000
"""At this load only models with few requests a period are ever stopped, and these requests take hundreds of periods"""


@dataclass(frozen=True)
class Latency:
    """Predicted for a number of threads."""

    threads: int
    p50_s: float
    p99_s: float


def predictable(service: Service, limit: CpuLimit, replicas: int = 1) -> bool:
    """Whether predictions hold for so many threads under the limit."""
    return limit.quota_m >= least_quota_m(service.threads * replicas, limit.period_us, limit.slice_s)


def paced_rate_per_s(services: Sequence[Service], limit: CpuLimit) -> float:
    """The rate at which numbers of threads are compared."""
    return LOAD * max(capacity_per_s(service, limit) for service in services)


def by_latency(services: Sequence[Service], limit: CpuLimit) -> list[Latency]:
    """The numbers of threads that can answer `paced_rate_per_s`, each with the same Poisson arrivals; the best first.

    The best has the least p50 of those with a p99 within `P99_MARGIN` of the least; of equal ones the fewest threads.
    """
    rate_per_s = paced_rate_per_s(services, limit)
    found = []
    for service in services:
        if rate_per_s <= _MOST_LOAD * capacity_per_s(service, limit):
            prediction = predict(service, limit, rate_per_s=rate_per_s, requests=_REQUESTS)
            found.append(Latency(service.threads, prediction.p50_s, prediction.p99_s))
    good_s = (1 + P99_MARGIN) * min(each.p99_s for each in found)
    return sorted(found, key=lambda each: (each.p99_s > good_s, each.p50_s, each.threads))


def by_rate(services: Sequence[Service], limit: CpuLimit) -> list[tuple[int, float]]:
    """Numbers of threads with their requests a second in a loop, the best first; of equal ones the fewest threads."""
    rates = [(service.threads, loop_per_s(service, limit)) for service in services]
    return sorted(rates, key=lambda each: (-each[1], each[0]))
