"""The request for a plan: models with their rates and targets, a kind of device, and the cost of neighbours.

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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fractune_core.errors import BadRequest
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.speeds import Row

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
