"""The best layout of one device for some jobs: a part for each job, and the highest total throughput.

It uses expected times: their errors make a layout neither better nor worse, and stand beside each speed. Throughput is
STP = sum of t_alone / t_shared, each job's time on the whole device over its time on its part (weighted speed-up;
MISO's objective). The term of each job does not depend on the parts of the others. So an exact answer needs no solver:
for every set of parts that fits, the jobs choose one after the other, and equal remainders are solved once.

On a part a job runs in the best way within its target: the batch and the number of processes with the highest
throughput.
"""

import contextlib
import functools
import importlib.util
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fractune_core.errors import FractuneError, PlanInfeasible
from fractune_core.planning import devices
from fractune_core.planning.devices import DevicePart
from fractune_core.planning.plans import ModelDemand, Plan, PlannedModel, PlannedPart, PlanRequest
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
    fitting = [way for way in _ways_on(model, speeds, part, slowdown) if way.latency_s <= limit_s]
    return max(fitting, key=lambda way: (way.throughput_per_s, -way.latency_s), default=None)


def explain_no_way(
    request: PlanRequest, model: ModelDemand, speeds: ModelSpeeds, slowdowns: Mapping[int, float]
) -> str:
    """One line: the reason why no part of the device is enough for a model, and a remedy. `slowdowns` by units of a
    part.
    """
    parts = [part for part in request.device.parts if speeds.at(part.units)]
    largest = max(request.device.parts, key=lambda part: part.memory_gib)
    found = [(way, part) for part in parts for way in _ways_on(model, speeds, part, slowdowns[part.units])]
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


def _ways_on(model: ModelDemand, speeds: ModelSpeeds, part: DevicePart, slowdown: float) -> list[Way]:
    rows = speeds.at(part.units)
    return [Way(row, slowdown) for row in rows if model.memory_gib * row.processes <= part.memory_gib]


TIME_LIMIT_S = 30.0
"""of one solve; the best solution by then is used, and not called optimal"""


@dataclass(frozen=True)
class Constraint:
    """lower <= sum of coefficient * variable <= upper; infinite bounds are none."""

    coefficients: Mapping[int, float]
    """by the index of the variable"""
    lower: float
    upper: float


@dataclass(frozen=True)
class IntegerProgram:
    """Minimise the sum of costs * variables, all of them whole numbers from 0 on."""

    costs: Sequence[float]
    constraints: Sequence[Constraint]


@dataclass(frozen=True)
class Solution:
    values: tuple[int, ...]
    is_proved: bool
    """whether no solution has lower cost"""


def solve(program: IntegerProgram) -> Solution | None:
    """The cheapest solution; None where none exists, or none was found in TIME_LIMIT_S.

    Raises FractuneError without the solver.
    """
    if importlib.util.find_spec("highspy") is None:
        raise FractuneError("a plan for several devices needs a solver; install 'fractune[plan]'")
    import highspy
    import numpy as np

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("output_flag", False),
        ("mip_rel_gap", 0.0),
        ("time_limit", TIME_LIMIT_S),
        ("parallel", "off"),
    ):
        solver.setOptionValue(option, value)
    count = len(program.costs)
    solver.addVars(count, np.zeros(count), np.full(count, highspy.kHighsInf))
    columns = np.arange(count, dtype=np.int32)
    solver.changeColsCost(count, columns, np.array(program.costs, dtype=np.double))
    solver.changeColsIntegrality(count, columns, np.full(count, highspy.HighsVarType.kInteger))
    for each in program.constraints:
        indices = np.fromiter(each.coefficients.keys(), dtype=np.int32)
        weights = np.fromiter(each.coefficients.values(), dtype=np.double)
        solver.addRow(each.lower, each.upper, len(indices), indices, weights)
    solver.run()
    if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    values = tuple(round(value) for value in solver.getSolution().col_value)
    return Solution(values, solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


_Chosen = tuple[float, tuple[int, ...]]
"""STP, and the units of each job"""


def plan_one(request: PlanRequest) -> Plan:
    """The plan. Raises PlanInfeasible, which names the limiting job."""
    began = time.perf_counter()
    ways, wholes = _ways(request), _whole_ways(request)
    speeds = {(job, units): way.expected_per_s / wholes[job].expected_per_s for (job, units), way in ways.items()}
    found = _choose(request, speeds)
    if found is None:
        raise PlanInfeasible(_no_room(request))
    stp, units = found
    parts = _placed(request, ways, units)
    return Plan(
        device=request.device.name,
        partitioning=request.device.partitioning.value,
        unit=request.device.unit,
        units_per_device=request.device.units,
        axis=request.device.length,
        devices=(tuple(sorted(parts, key=lambda part: part.place)),),
        models=tuple(
            PlannedModel(
                model.name,
                None,
                ways[job, of].throughput_per_s,
                model.latency_s,
                speeds[job, of],
                ways[job, of].row.error + wholes[job].row.error,
            )
            for job, (model, of) in enumerate(zip(request.models, units, strict=True))
        ),
        headroom=0.0,
        stp=stp,
        is_proved=True,
        solve_s=time.perf_counter() - began,
    )


def _ways(request: PlanRequest) -> dict[tuple[int, int], Way]:
    """The best way of each job at each number of units, beside the others."""
    names = [model.name for model in request.models]
    found = {}
    for job, model in enumerate(request.models):
        speeds = ModelSpeeds(model.rows)
        slowdown = request.slowdown(model.name, [*names[:job], *names[job + 1 :]])
        for part in request.device.parts:
            way = best_way(request, model, speeds, part, slowdown)
            if way is not None:
                found[job, part.units] = way
        if not any(of == job for of, _ in found):
            slowdowns = {part.units: slowdown for part in request.device.parts}
            raise PlanInfeasible(explain_no_way(request, model, speeds, slowdowns))
    return found


def _whole_ways(request: PlanRequest) -> list[Way]:
    """The fastest way of each job alone on the whole device, without its target."""
    found = []
    for model in request.models:
        speeds = ModelSpeeds(model.rows)
        rows = [Way(row, 1.0) for row in speeds.at(request.device.units)]
        found.append(max(rows, key=lambda way: way.expected_per_s))
    return found


def _choose(request: PlanRequest, speeds: Mapping[tuple[int, int], float]) -> _Chosen | None:
    """The units of each job for the highest STP; None where the jobs do not fit."""
    count, device = len(request.models), request.device
    if device.partitioning is not devices.Partitioning.MIG:
        return _fill(speeds, count, device)
    sizes = {part.units for part in device.parts}
    best: _Chosen | None = None
    for profiles in _multisets(count):
        if {profile.compute for profile in profiles} <= sizes:
            found = _assign(speeds, tuple(sorted(profile.compute for profile in profiles)))
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    return best


def _assign(speeds: Mapping[tuple[int, int], float], parts: tuple[int, ...]) -> _Chosen | None:
    """One of `parts` for each job."""

    @functools.cache
    def best(job: int, left: tuple[int, ...]) -> _Chosen | None:
        if not left:
            return 0.0, ()
        found: _Chosen | None = None
        for units in sorted(set(left)):
            if (job, units) in speeds:
                at = left.index(units)
                rest = best(job + 1, left[:at] + left[at + 1 :])
                if rest is not None and (found is None or speeds[job, units] + rest[0] > found[0]):
                    found = speeds[job, units] + rest[0], (units, *rest[1])
        return found

    return best(0, parts)


def _fill(speeds: Mapping[tuple[int, int], float], count: int, device: devices.DeviceType) -> _Chosen | None:
    """The best length of the axis for each job, together at most the whole axis."""

    @functools.cache
    def best(job: int, room: int) -> _Chosen | None:
        if job == count:
            return 0.0, ()
        found: _Chosen | None = None
        for part in device.parts:
            if part.length <= room and (job, part.units) in speeds:
                rest = best(job + 1, room - part.length)
                if rest is not None and (found is None or speeds[job, part.units] + rest[0] > found[0]):
                    found = speeds[job, part.units] + rest[0], (part.units, *rest[1])
        return found

    return best(0, device.length)


@functools.cache
def _multisets(count: int) -> tuple[tuple[devices.Profile, ...], ...]:
    """Every choice of `count` instances that one GPU can hold."""
    kinds = [profile for profile in devices.PROFILES if profile in devices.PLAIN]
    every = itertools.combinations_with_replacement(kinds, count)
    return tuple(each for each in every if next(devices.placements(each), None) is not None)


def _placed(request: PlanRequest, ways: Mapping[tuple[int, int], Way], units: tuple[int, ...]) -> list[PlannedPart]:
    """The jobs on the axis, each at its units."""
    by_units = request.device.by_units
    jobs = sorted(range(len(units)), key=lambda job: -by_units[units[job]].length)
    places = (
        devices.least_wasteful(units)
        if request.device.partitioning is devices.Partitioning.MIG
        else _line_places(request.device, units)
    )
    found = []
    for job in jobs:
        part = by_units[units[job]]
        place = places[part.units].pop(0)
        found.append(ways[job, part.units].planned(request.models[job].name, part, place))
    return found


def _line_places(device: devices.DeviceType, units: tuple[int, ...]) -> dict[int, list[int]]:
    """Beginnings of the parts by units, the longest part first."""
    places: dict[int, list[int]] = {}
    at = 0
    for part in sorted((device.by_units[each] for each in units), key=lambda part: -part.length):
        places.setdefault(part.units, []).append(at)
        at += part.length
    return places


def _no_room(request: PlanRequest) -> str:
    """The message for jobs that do not fit: it names the job that would have to go."""
    device, count = request.device, len(request.models)
    most = device.length // min(part.length for part in device.parts)
    if device.partitioning is devices.Partitioning.MIG:
        most = devices.BY_NAME["1g"].at_most
    if count > most:
        limit = f"{device.name} by {device.partitioning}, which has at most {most} parts"
        return f"{count} jobs for one {limit}; leave some out"
    for model in sorted(request.models, key=lambda model: -model.memory_gib):
        rest = tuple(other for other in request.models if other is not model)
        with contextlib.suppress(PlanInfeasible):
            plan_one(replace(request, models=rest))
            return (
                f"{count} jobs do not fit onto one {device.name} by {device.partitioning}: the limiting job is "
                f"'{model.name}', and the others fit without it; give it a device of its own, or a longer target"
            )
    return (
        f"{count} jobs do not fit onto one {device.name} by {device.partitioning}, nor do they without any one of them"
    )
