"""The request for a plan, and the plan: models on parts of devices, and the expected results.

A request has the models with their rates and targets, a kind of device, and the cost of neighbours:

[device]
gpu = "A100-80GB"              # or cores = 8
partitioning = "mig"           # mig, mps, green; cpu for cores
count = 16                     # at most; left out = as many as needed

[[models]]
name = "resnet50"
rate_per_s = 829               # of every model; of none for the best layout of one device
latency_ms = 205
profile = [{share = "2g", batch = 8, throughput_per_s = 900, latency_ms = 18}]

[[interference]]
model = "resnet50"             # takes `i` times as long
beside = "bert"
i = 1.08
"""

import heapq
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fractune_core.codec.plain_json import In
from fractune_core.errors import BadRequest
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.speeds import Basis, Row

DEFAULT_LATENCY_PART = 0.5
"""of the target: a request waits at most for the batch before its own, and then for its own"""
DEFAULT_PENALTY = 0.13
"""Cost of a neighbour that was not measured: 5 to 13 % in the literature (iGniter, V100, batch 16), so 13 %"""
MOST_MODELS = 256
MOST_DEVICES = 4096


@dataclass(frozen=True)
class ModelDemand:
    """A model, its rate and its target."""

    name: str
    rows: tuple[Row, ...]
    rate_per_s: float | None = None
    """requests; None = a job for the mode of one device"""
    latency_s: float | None = None
    """target of a request; None = none"""
    memory_gib: float = 0.0
    """of one process; 0 = not known, and any part will do"""


@dataclass(frozen=True)
class PlanRequest:
    """The input of a plan. `check` raises BadRequest for contradictions."""

    device: DeviceType
    models: tuple[ModelDemand, ...]
    count: int | None = None
    """devices at most; None = as many as needed"""
    interference: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """slowdown factor by model and neighbour, each at its part"""
    penalty: float = DEFAULT_PENALTY
    """cost, as a fraction, of a neighbour without an entry in `interference`, where parts share caches and memory"""
    headroom: float = 0.0
    """planned throughput beyond each rate, as a fraction of the rate"""
    latency_part: float = DEFAULT_LATENCY_PART
    """fraction of each target that a batch may take; the rest is for waiting"""

    @property
    def is_fleet(self) -> bool:
        """Whether the plan serves rates with the fewest devices; otherwise it divides one device among jobs."""
        return self.models[0].rate_per_s is not None

    def check(self) -> None:
        """Raises BadRequest for the first contradiction."""
        if not self.models:
            raise BadRequest("the plan has no model; add one as [[models]]")
        if len(self.models) > MOST_MODELS:
            raise BadRequest(f"the plan has {len(self.models)} models; it may have at most {MOST_MODELS}")
        if self.count is not None and not 1 <= self.count <= MOST_DEVICES:
            raise BadRequest(f"count is {self.count}; it must be from 1 to {MOST_DEVICES} devices")
        _check_number("headroom", self.headroom, above=False, at_most=10)
        _check_number("penalty", self.penalty, above=False, at_most=10)
        _check_number("latency_part", self.latency_part, above=True, at_most=1)
        names = [model.name for model in self.models]
        for model in self.models:
            _check_model(model, names)
        if len({model.rate_per_s is None for model in self.models}) > 1:
            without = next(model.name for model in self.models if model.rate_per_s is None)
            raise BadRequest(f"model '{without}' has no rate_per_s and others have; give every model one, or none")
        if not self.is_fleet and self.count not in {None, 1}:
            raise BadRequest(f"{self.count} devices and no rates: without rates one device is divided; give rate_per_s")
        for (slowed, beside), i in self.interference.items():
            for name in (slowed, beside):
                if name not in names:
                    raise BadRequest(f"interference: no model is called '{name}'; there are {', '.join(names)}")
            _check_number(f"interference: i of '{slowed}' beside '{beside}'", i, above=True, at_most=100)

    def slowdown(self, model: str, neighbours: list[str]) -> float:
        """The slowdown factor of a model on a part beside these neighbours; 1 without neighbours.

        Interference is measured in pairs, so the worst of several neighbours counts. Where a pair was not measured and
        parts share caches and memory, the stated penalty counts for that neighbour.
        """
        unknown = 1.0 if self.device.isolates else 1 + self.penalty
        return max((self.interference.get((model, each), unknown) for each in neighbours), default=1.0)


def _check_model(model: ModelDemand, names: list[str]) -> None:
    who = f"model '{model.name}'"
    if not model.name:
        raise BadRequest("a model has no name; give each model one, because the plan lists models by name")
    if names.count(model.name) > 1:
        raise BadRequest(f"{who} appears twice; give each model its own name")
    if model.rate_per_s is not None:
        _check_number(f"{who}: rate_per_s", model.rate_per_s, above=True)
    if model.latency_s is not None:
        _check_number(f"{who}: the latency target (s)", model.latency_s, above=True)
    _check_number(f"{who}: memory_gib", model.memory_gib, above=False)
    if not model.rows:
        raise BadRequest(
            f"{who}: nothing is known of its speed; give a bundle, a model that the log knows, or a profile"
        )
    for row in model.rows:
        for what, value in (("units", row.units), ("batch", row.batch), ("processes", row.processes)):
            if value < 1:
                raise BadRequest(f"{who}: profile: {what} is {value}; it must be 1 or more")
        _check_number(f"{who}: profile: throughput_per_s", row.throughput_per_s, above=True)
        _check_number(f"{who}: profile: the latency (s)", row.latency_s, above=True)


def _check_number(what: str, value: float, *, above: bool, at_most: float = math.inf) -> None:
    fits = math.isfinite(value) and value <= at_most and (value > 0 if above else value >= 0)
    if not fits:
        bounds = "above 0" if above else "0 or more"
        limit = "" if math.isinf(at_most) else f" and at most {at_most:g}"
        raise BadRequest(f"{what} is {value:g}; it must be {bounds}{limit}")


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
