"""A plan: models on parts of devices, and the expected results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fractune_core.codec.places import In
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
