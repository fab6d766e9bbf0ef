"""Latency and throughput of a model under a CPU limit."""

import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fractune_core.cpu_limits import CpuLimit, Service, capacity_per_s, least_quota_m, loop_per_s, threads_text
from fractune_core.errors import BadRequest
from fractune_core.served import LOAD, poisson

# CPU time under a quota, as the kernel gives it to a group of threads.
#
# 1. Each period fills the budget to the quota, or above it by the burst at most.
# 2. When the budget is used up, all threads go on until the kernel's next tick, and then stop. The next period pays
#    for this time.
# 3. Each core takes the budget in slices. Of several threads that work on one request, one is stopped first. The
#    others use up their slices in wait for it, and go on until their ticks. This CPU time is lost.
#
# Times are on a clock that stands still while the threads are stopped. On this clock a stop takes no time, and the
# periods come earlier by the time stopped so far.


class Budget:
    """The budget of a group in which `threads` threads work together on a request."""

    def __init__(self, limit: CpuLimit, threads: int, draws: random.Random) -> None:
        self.stopped_s = 0.0
        self._limit = limit
        self._others = threads - 1
        self._draws = draws
        self._period_s = limit.period_us / 1e6
        self._quota_s = limit.quota_us / 1e6
        self._full_s = (limit.quota_us + limit.burst_us) / 1e6
        self._left_s = self._quota_s
        self._refill = self._period_s * draws.random()
        self._draw()

    def burn(self, cores: float, now: float, until: float) -> float:
        """Keep that many cores busy from `now` on. Returns `until`, or the earlier time of a stop that is over then."""
        if not cores:
            self._rest(until)
            return until
        while True:
            stop = max(now, now + (self._left_s - self._in_slices_s) / cores + self._delay_s)
            if stop < until and stop < self._refill:
                self._left_s -= cores * (stop - now) + self._in_slices_s + self._overrun_s
                self._stop(stop)
                return stop
            if until < self._refill:
                self._left_s -= cores * (until - now)
                return until
            self._left_s -= cores * (self._refill - now)
            now = self._refill
            self._fill(1)

    def _rest(self, until: float) -> None:
        if until > self._refill:
            self._fill(math.ceil((until - self._refill) / self._period_s))

    def _stop(self, now: float) -> None:
        """Until a period leaves something of the budget."""
        periods = max(1, math.floor(1 - self._left_s / self._quota_s))
        stopped_s = self._refill - now + (periods - 1) * self._period_s
        self._fill(periods)
        self._refill -= stopped_s
        self.stopped_s += stopped_s
        self._draw()

    def _fill(self, periods: int) -> None:
        self._left_s = min(self._left_s + periods * self._quota_s, self._full_s)
        self._refill += periods * self._period_s

    def _draw(self) -> None:
        """By chance, for the next stop: the first thread's way to its tick, and the CPU time of the others after it."""
        self._delay_s = self._limit.tick_s * self._draws.random()
        self._in_slices_s = self._others * self._limit.slice_s * self._draws.random()
        self._overrun_s = self._others * self._limit.tick_s * self._draws.random()


# Requests to replicas of a model under a CPU limit, as a fluid simulation.
#
# Requests wait in one queue for the replica that has been idle longest. A busy replica burns the budget at a constant
# rate, and so do threads that spin in wait for its next request. A stop leaves the caches as cold as a pause does.

_PAUSE_S = 0.002
"""without a request, after which the next one takes a paced time"""


@dataclass(frozen=True)
class Served:
    """Results of one run."""

    latencies_s: list[float]
    """from the arrival to the end, in the order of the ends"""
    elapsed_s: float
    stopped_s: float
    """of `elapsed_s`"""


def serve(
    service: Service, limit: CpuLimit, replicas: int, requests: int, arrivals: Sequence[float] | None, seed: int
) -> Served:
    """The first `requests` requests; without arrivals each replica gets its next request at the end of the last one.
    The seed decides the phase of the periods and which of the measured times are drawn.
    """
    draws = random.Random(seed)
    budget = Budget(limit, service.threads, draws)
    loop_s = iter(draws.choices(service.wall_s, k=requests + replicas))
    paced_s = iter(draws.choices(service.paced_wall_s or service.wall_s, k=requests + replicas))
    queue = deque([0.0] * replicas if arrivals is None else arrivals)
    idle = deque([-math.inf] * replicas)
    """the ends of the last requests"""
    busy: list[tuple[float, float]] = []
    """a heap: the end of a request by the budget's clock, its arrival by the clock on the wall"""
    now, spinning, latencies_s = 0.0, 0, list[float]()
    while len(latencies_s) < requests and (busy or queue):
        end = busy[0][0] if busy else math.inf
        start = max(now, queue[0] - budget.stopped_s) if idle and queue else math.inf
        still = idle[-spinning] + service.spin_s if spinning else math.inf
        event = min(end, start, still)
        now = budget.burn(service.cores * len(busy) + (service.threads - 1) * spinning, now, event)
        if now < event:
            busy = [(end + service.cold_s, arrived) for end, arrived in busy]
        elif event == end:
            wall = now + budget.stopped_s
            latencies_s.append(wall - heapq.heappop(busy)[1])
            idle.append(now)
            spinning += service.spin_s > 0
            if arrivals is None:
                queue.append(wall)
        elif event == start:
            pause_s = now - idle.popleft()
            spinning = min(spinning, len(idle))
            heapq.heappush(busy, (now + next(paced_s if pause_s > _PAUSE_S else loop_s), queue.popleft()))
        else:
            spinning -= 1
    return Served(latencies_s, now + budget.stopped_s, budget.stopped_s)


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
