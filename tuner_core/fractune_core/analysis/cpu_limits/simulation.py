"""Requests to replicas of a model under a CPU limit, as a fluid simulation.

Requests wait in one queue for the replica that has been idle longest. A busy replica burns the budget at a constant
rate, and so do threads that spin in wait for its next request. A stop leaves the caches as cold as a pause does.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.analysis.cpu_limits.budget import Budget
from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service

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
