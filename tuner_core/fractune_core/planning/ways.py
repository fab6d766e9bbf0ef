"""The best way to run a model on a part: the batch and the number of processes with the highest throughput within the
target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fractune_core.planning.devices import DevicePart
from fractune_core.planning.plans import PlannedPart
from fractune_core.planning.requests import ModelDemand, PlanRequest
from fractune_core.planning.speeds import ModelSpeeds, Row


@dataclass(frozen=True)
class Way:
    """A row, and the slowdown factor of its neighbours."""

    row: Row
    slowdown: float

    @property
    def throughput_per_s(self) -> float:
        return self.row.throughput_per_s / self.slowdown

    @property
    def expected_per_s(self) -> float:
        return self.row.expected_per_s / self.slowdown

    @property
    def latency_s(self) -> float:
        return self.row.latency_s * self.slowdown

    def planned(self, model: str, part: DevicePart, place: int) -> PlannedPart:
        row = self.row
        return PlannedPart(
            part.share,
            part.units,
            place,
            part.length,
            model,
            row.batch,
            row.processes,
            self.throughput_per_s,
            self.latency_s,
            row.basis,
            row.error,
            self.slowdown,
        )


def best_way(
    request: PlanRequest, model: ModelDemand, speeds: ModelSpeeds, part: DevicePart, slowdown: float
) -> Way | None:
    """The highest throughput with a batch within its part of the target, and within the memory; None without any."""
    limit_s = math.inf if model.latency_s is None else model.latency_s * request.latency_part
    fitting = [way for way in _ways(model, speeds, part, slowdown) if way.latency_s <= limit_s]
    return max(fitting, key=lambda way: (way.throughput_per_s, -way.latency_s), default=None)


def explain_no_way(
    request: PlanRequest, model: ModelDemand, speeds: ModelSpeeds, slowdowns: Mapping[int, float]
) -> str:
    """One line: the reason why no part of the device is enough for a model, and a remedy. `slowdowns` by units of a
    part.
    """
    parts = [part for part in request.device.parts if speeds.at(part.units)]
    largest = max(request.device.parts, key=lambda part: part.memory_gib)
    found = [(way, part) for part in parts for way in _ways(model, speeds, part, slowdowns[part.units])]
    if not found:
        return (
            f"model '{model.name}' cannot run on any part of {request.device.name}: it needs {model.memory_gib:g} GiB, "
            f"and {largest.share} has {largest.memory_gib:.4g}; use a device with more memory"
        )
    way, part = min(found, key=lambda each: each[0].latency_s)
    target_ms, takes_ms = (model.latency_s or math.inf) * 1e3, way.latency_s * 1e3
    beside = f" with co-runners (they cost {(way.slowdown - 1) * 100:.0f} %)" if way.slowdown > 1 else ""
    enough_ms = math.ceil(takes_ms / request.latency_part * 1e4) / 1e4
    return (
        f"model '{model.name}' is too slow for its target on any part of {request.device.name}: a batch of "
        f"{way.row.batch} takes {takes_ms:.4g} ms at {part.share}{beside}, and may take "
        f"{target_ms * request.latency_part:.4g} of the {target_ms:g} ms; a target of {enough_ms:.7g} ms would suffice"
    )


def _ways(model: ModelDemand, speeds: ModelSpeeds, part: DevicePart, slowdown: float) -> list[Way]:
    rows = speeds.at(part.units)
    return [Way(row, slowdown) for row in rows if model.memory_gib * row.processes <= part.memory_gib]
