"""Simulation of a plan: requests arrive at random, wait, and are served in batches. The result is the late fraction.

Each model is simulated alone, because parts of other models affect it only by the slow-down in the plan:

1. Requests arrive as a Poisson process of the model's rate and wait in one queue for all its parts.
2. A free process takes the waiting requests at once, up to its batch. Of several free processes, the one on the part
   with the shortest latency takes them. No process waits for a full batch.
3. A batch takes the latency in the plan, full or not.

The first tenth of the requests, after the empty start, is not counted. Real balancers know less than one queue does,
and real times vary: the result is the best that can be hoped for.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable

from fractune_core.planning.plans import Plan, PlannedModel, PlannedPart, SimulatedModel

REQUESTS = 20_000
"""of each model: 180 requests then lie above p99"""
_WARM_UP = 0.1
_PERCENTILE = 0.99


def simulate(plan: Plan, *, seed: int = 0, requests: int = REQUESTS) -> tuple[SimulatedModel, ...]:
    """Results of each model's requests, in the plan's order; for a fleet, where models have rates."""
    parts = [part for parts in plan.devices for part in parts]
    return tuple(
        _simulate_model(model, [part for part in parts if part.model == model.name], seed, requests)
        for model in plan.models
    )


def _simulate_model(model: PlannedModel, parts: Iterable[PlannedPart], seed: int, requests: int) -> SimulatedModel:
    # Seeded by name: a model's arrivals are the same in every plan.
    draws = random.Random(f"{seed} {model.name}")
    taken = serve(_arrivals(draws, model.rate_per_s or 1.0, requests), parts)
    counted = sorted(taken[int(len(taken) * _WARM_UP) :])
    target = math.inf if model.latency_s is None else model.latency_s
    p99 = counted[math.ceil(_PERCENTILE * len(counted)) - 1]
    return SimulatedModel(
        name=model.name,
        requests=len(counted),
        p50_s=counted[math.ceil(0.5 * len(counted)) - 1],
        p99_s=p99,
        late=sum(each > target for each in counted) / len(counted),
        holds=p99 <= target,
    )


def _arrivals(draws: random.Random, rate_per_s: float, count: int) -> list[float]:
    at, found = 0.0, []
    for _ in range(count):
        at += draws.expovariate(rate_per_s)
        found.append(at)
    return found


def serve(arrivals: list[float], parts: Iterable[PlannedPart]) -> list[float]:
    """Seconds from the arrival to the end of each request, in the order of arrival."""
    processes = [(part.latency_s, part.batch) for part in parts for _ in range(part.processes)]
    free = [(latency_s, number) for number, (latency_s, _) in enumerate(processes)]
    heapq.heapify(free)
    busy: list[tuple[float, int]] = []
    taken: list[float] = []
    next_one, waiting, now = 0, 0, 0.0
    """arrivals[next_one - waiting : next_one] wait"""
    while next_one < len(arrivals) or waiting:
        if not waiting or not free:
            # Go on to the next event: an arrival, or a process that becomes free.
            arrival = arrivals[next_one] if next_one < len(arrivals) else math.inf
            if busy and busy[0][0] <= arrival:
                now, number = heapq.heappop(busy)
                heapq.heappush(free, (processes[number][0], number))
            else:
                now, next_one, waiting = arrival, next_one + 1, waiting + 1
            continue
        latency_s, number = heapq.heappop(free)
        batch = min(waiting, processes[number][1])
        first = next_one - waiting
        taken += [now + latency_s - arrivals[each] for each in range(first, first + batch)]
        waiting -= batch
        heapq.heappush(busy, (now + latency_s, number))
    return taken
