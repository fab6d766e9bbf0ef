"""The least CPU limit with which a model answers in time."""

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fractune_core import cpu_limits
from fractune_core.analysis.limit_prediction import Prediction, Served, enough_requests, p99_s, serve, summary
from fractune_core.cpu_limits import MILLICORES
from fractune_core.errors import BadRequest
from fractune_core.served import poisson

STEP_M = 50
MARGIN = 0.08
"""With it 37 of the 42 measured p99 of Poisson arrivals were at most the predicted one (docs/cpu-limits.md)"""
_RUNS = 5
"""of each alternative, each with other arrivals; the worst one decides"""
_REQUESTS = 4_000
"""of a run at least"""
_MOST_LOAD = 0.98
"""of the capacity; nearer to it latencies grow with the number of requests"""


@dataclass(frozen=True)
class Goal:
    """What a service has to keep, and on how many cores. Raises BadRequest for values out of range."""

    rate_per_s: float
    """of Poisson arrivals"""
    p99_s: float
    cores: int
    margin: float = MARGIN
    """fraction by which inferences may take longer than measured"""
    step_m: int = STEP_M
    """millicores; limits are multiples of it"""
    period_us: int = cpu_limits.PERIOD_US
    bursts: tuple[float, ...] = (0.0,)
    """fractions of the quota; Kubernetes sets none"""

    def __post_init__(self) -> None:
        positive = {"rate": self.rate_per_s, "p99": self.p99_s, "cores": self.cores, "step": self.step_m}
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise BadRequest(f"{name} is {value:g}; it must be above 0")
        if not 0 <= self.margin < math.inf:
            raise BadRequest(f"margin is {self.margin:g}; it must be 0 or more, such as {MARGIN:g}")
        if not self.bursts or not all(0 <= burst <= 1 for burst in self.bursts):
            raise BadRequest(f"bursts is {self.bursts}; give fractions of the quota, from 0 to 1")
        if self.step_m > MILLICORES * self.cores:
            raise BadRequest(
                f"step is {self.step_m}m; it must be at most {MILLICORES * self.cores}m, of {self.cores_text}"
            )

    @property
    def cores_text(self) -> str:
        return f"{self.cores} core{'s' if self.cores > 1 else ''}"


@dataclass(frozen=True)
class Alternative:
    """A way to keep a goal, with the least limit that keeps it."""

    threads: int
    """of a replica"""
    replicas: int
    limit: cpu_limits.CpuLimit
    prediction: Prediction
    """from the times as they were measured"""
    safe_p99_s: float
    """predicted for inferences that take longer by the margin, of the worst run: it decides"""

    @property
    def name(self) -> str:
        return f"{self.replicas} x {cpu_limits.threads_text(self.threads)} at {self.limit.quota_m}m"


def fit(services: Sequence[cpu_limits.Service], goal: Goal) -> list[Alternative]:
    """The ways to keep the goal: for each number of threads, replicas and burst the least limit. The smallest limit
    comes first; of equal ones that with the fewest threads, then the smallest burst. More replicas, or a larger burst,
    are left out where they allow no smaller limit.

    Raises BadRequest, with what would do, where nothing keeps the goal.
    """
    fitting = _check(services, goal)
    search = _Search(goal)
    found = [each for service in fitting for each in search.with_bursts(service)]
    if not found:
        raise BadRequest(search.failure())
    return sorted(found, key=lambda each: (each.limit.quota_m, each.threads * each.replicas, each.limit.burst_us))


def _check(services: Sequence[cpu_limits.Service], goal: Goal) -> list[cpu_limits.Service]:
    """The services that fit on the cores. Raises BadRequest where they cannot keep the goal at any limit."""
    fitting = [service for service in services if service.threads <= goal.cores]
    if not fitting:
        measured = ", ".join(str(service.threads) for service in services) or "nothing"
        raise BadRequest(f"no measured number of threads ({measured}) is for {goal.cores_text}; measure fewer threads")
    fastest = min(fitting, key=lambda service: service.mean_s)
    longer = 1 + goal.margin
    if longer * min(fastest.wall_s) > goal.p99_s:
        least_ms = 1e3 * fastest.mean_s * longer
        raise BadRequest(
            f"a p99 of {1e3 * goal.p99_s:g} ms is less than one inference takes: {1e3 * fastest.mean_s:.3g} ms with"
            f" {cpu_limits.threads_text(fastest.threads)}; ask for more than {least_ms:.3g} ms, or tune the model"
        )
    whole = cpu_limits.CpuLimit(MILLICORES * goal.cores, goal.period_us)
    most_per_s = max(cpu_limits.capacity_per_s(each, whole, goal.cores // each.threads) for each in fitting) / longer
    if goal.rate_per_s > _MOST_LOAD * most_per_s:
        cores = math.ceil(goal.rate_per_s * min(each.cpu_s for each in fitting) * longer / _MOST_LOAD)
        raise BadRequest(
            f"{goal.rate_per_s:g} requests/s are more than {goal.cores_text} can answer ({most_per_s:.1f}/s);"
            f" ask for at most {_MOST_LOAD * most_per_s:.1f}/s, or a machine with {max(cores, goal.cores + 1)} cores"
        )
    return fitting


class _Search:
    """The least limits for a goal. All alternatives get the same arrivals."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        requests = enough_requests(goal.rate_per_s, goal.period_us, _REQUESTS)
        self._arrivals = [poisson(goal.rate_per_s, requests, random.Random(seed)) for seed in range(_RUNS)]
        self._missed: list[Alternative] = []
        """with the largest limit of use"""

    def with_bursts(self, service: cpu_limits.Service) -> Iterator[Alternative]:
        """By burst and number of replicas, each with a smaller limit than any with as many replicas and less burst."""
        least_m: dict[int, int] = {}
        for burst in sorted(self._goal.bursts):
            for each in self.alternatives(service, burst):
                if each.limit.quota_m < least_m.get(each.replicas, each.limit.quota_m + 1):
                    least_m[each.replicas] = each.limit.quota_m
                    yield each

    def alternatives(self, service: cpu_limits.Service, burst: float) -> Iterator[Alternative]:
        """By number of replicas, each with a smaller limit than the one before."""
        least_m = math.inf
        for replicas in range(1, self._goal.cores // service.threads + 1):
            found = self._least(service, replicas, burst)
            if found is not None:
                if found.limit.quota_m >= least_m:
                    return
                least_m = found.limit.quota_m
                yield found

    def failure(self) -> str:
        """The message where no alternative was found."""
        goal = self._goal
        wanted = f"no limit keeps a p99 of {1e3 * goal.p99_s:g} ms at {goal.rate_per_s:g}/s on {goal.cores_text}"
        if not self._missed:
            return (
                f"{wanted}: those in steps of {goal.step_m}m and periods of {goal.period_us} us are too small;"
                " take longer periods, a smaller step or more cores"
            )
        nearest = min(self._missed, key=lambda each: each.safe_p99_s)
        least_ms = math.ceil(1e4 * nearest.safe_p99_s) / 10
        return f"{wanted}; the nearest is {least_ms:g} ms by {nearest.name}: ask for {least_ms:g} ms or a lower rate"

    def _least(self, service: cpu_limits.Service, replicas: int, burst: float) -> Alternative | None:
        """By bisection: a request is not later under a larger limit."""
        goal, threads, slower = self._goal, service.threads * replicas, service.slower(self._goal.margin)
        if goal.rate_per_s > _MOST_LOAD * replicas / slower.mean_s:
            return None
        busy_m = MILLICORES * goal.rate_per_s * slower.cpu_s / _MOST_LOAD
        lowest = math.ceil(max(busy_m, cpu_limits.least_quota_m(threads, goal.period_us)) / goal.step_m)
        highest = min(MILLICORES * goal.cores // goal.step_m, math.ceil(MILLICORES * threads / goal.step_m))

        def limit(steps: int) -> cpu_limits.CpuLimit:
            quota_us = steps * goal.step_m * goal.period_us // MILLICORES
            return cpu_limits.CpuLimit(steps * goal.step_m, goal.period_us, int(burst * quota_us))

        def holds(steps: int) -> bool:
            return all(p99_s(run) <= goal.p99_s for run in self._runs(slower, replicas, limit(steps)))

        def alternative(steps: int) -> Alternative:
            found = limit(steps)
            prediction, safe = (summary(list(self._runs(each, replicas, found))) for each in (service, slower))
            return Alternative(service.threads, replicas, found, prediction, safe.worst_p99_s)

        if lowest > highest:
            return None
        if not holds(highest):
            self._missed.append(alternative(highest))
            return None
        return alternative(lowest + bisect_left(range(lowest, highest), 1, key=holds))

    def _runs(self, service: cpu_limits.Service, replicas: int, limit: cpu_limits.CpuLimit) -> Iterator[Served]:
        for seed, arrivals in enumerate(self._arrivals):
            yield serve(service, limit, replicas, len(arrivals), arrivals, seed)
