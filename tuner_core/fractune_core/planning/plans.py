"""A plan: models on parts of devices, and the expected results."""

import heapq
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fractune_core.codec.plain_json import In
from fractune_core.planning.speeds import Basis


@dataclass(frozen=True)
class PlannedPart:
    """A part of a device, and the model on it."""

    share: str
    units: int
    place: int
    """its beginning on the device's axis: for MIG its memory slice"""
    length: int
    """on that axis"""
    model: str
    batch: int
    processes: int
    throughput_per_s: float
    """requests a second that the plan counts on: predictions less their error, with neighbours"""
    latency_s: float
    """of a batch, likewise"""
    basis: Basis
    error: float
    """of a prediction, as a fraction; included in the two figures above"""
    slowdown: float
    """by neighbours; included in the two figures above"""


@dataclass(frozen=True)
class PlannedModel:
    """The expected results of a model."""

    name: str
    rate_per_s: float | None
    capacity_per_s: float
    """of all its parts"""
    latency_s: float | None
    """its target"""
    speed: float | None = None
    """in the mode of one device: of its speed on the whole device, as a fraction"""
    speed_error: float = 0.0
    """of `speed`, as a fraction: the possible error of the two times behind it; 0 = both were measured or stated"""

    @property
    def utilisation(self) -> float | None:
        """Rate over capacity."""
        return None if self.rate_per_s is None else self.rate_per_s / self.capacity_per_s


@dataclass(frozen=True)
class SimulatedModel:
    """Results of a model's requests in a simulation."""

    name: str
    requests: int
    p50_s: float
    p99_s: float
    late: float
    """fraction of requests that took longer than the target; 0 without a target"""
    holds: bool
    """p99 within the target"""


@dataclass(frozen=True)
class Plan:
    """Made offline, for a person to confirm."""

    device: str
    """its name"""
    partitioning: Annotated[str, In("layouts")]
    unit: str
    units_per_device: int
    axis: int
    """length of a device's axis"""
    devices: tuple[tuple[PlannedPart, ...], ...]
    models: tuple[PlannedModel, ...]
    headroom: float
    stp: float | None
    """in the mode of one device: the sum of the jobs' speeds, each over its own on the whole device"""
    is_proved: Annotated[bool, In("proved")]
    """whether these figures allow no better plan; False when the solver ran out of time"""
    solve_s: float
    simulated: tuple[SimulatedModel, ...] = ()
    """empty when nothing was simulated"""
    notes: tuple[str, ...] = ()

    @property
    def units_used(self) -> int:
        return sum(part.units for parts in self.devices for part in parts)


# Simulation of a plan: requests arrive at random, wait, and are served in batches. The result is the late fraction.
#
# Each model is simulated alone, because parts of other models affect it only by the slow-down in the plan:
#
# 1. Requests arrive as a Poisson process of the model's rate and wait in one queue for all its parts.
# 2. A free process takes the waiting requests at once, up to its batch. Of several free processes, the one on the part
#    with the shortest latency takes them. No process waits for a full batch.
# 3. A batch takes the latency in the plan, full or not.
#
# The first tenth of the requests, after the empty start, is not counted. Real balancers know less than one queue
# does, and real times vary: the result is the best that can be hoped for.

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
