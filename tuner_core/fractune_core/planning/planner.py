"""From a request to a plan: its mode, and with a simulation the least headroom at which p99 holds.

A fleet is the fewest devices that serve the rates, then the fewest units of them: two solves of one integer program. A
layout is a path along a device's axis, so a fleet is a flow. Its paths, one for each device, lead from one end to the
other over parts and gaps. MIG's placement table has the arcs (Valerio de Carvalho's arc-flow form of cutting stock,
1999). Models take parts by size; each needs as much throughput as its rate.
"""

import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadRequest, FractuneError, PlanInfeasible
from fractune_core.host.limits import limit_process
from fractune_core.host.parent_death import die_with_parent
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning import one_device, plans
from fractune_core.planning.devices import DevicePart, DeviceType, Partitioning, least_wasteful
from fractune_core.planning.speeds import Basis, ModelSpeeds
from fractune_core.planning.wire import request_from_proto
from fractune_core.share_kinds import CUDA

_EXPLAINED = 16
"""models that are checked for the limiting one, in descending order of needed units; each check takes a solve"""
_NOTHING = 1e-9
"""of a rate: the solver drops coefficients this small, so a part that gives less gives nothing"""


def plan_fleet(request: plans.PlanRequest) -> plans.Plan:
    """Raises PlanInfeasible, which names the limiting model and a remedy; FractuneError without the solver."""
    began = time.perf_counter()
    ways = fleet_ways(request)
    program = _FleetProgram(request.device, ways, _needed(request))
    _check_reach(request, program)
    first = one_device.solve(program.fewest_devices())
    if first is None:
        raise FractuneError("the solver found no plan in its time; ask for fewer models or coarser layouts")
    count = first.values[program.devices]
    if count > (request.count or plans.MOST_DEVICES):
        raise PlanInfeasible(_too_few(request, program, count))
    second = one_device.solve(program.fewest_units(count)) or first
    solve_s = time.perf_counter() - began
    devices = program.decode(second)
    return plans.Plan(
        device=request.device.name,
        partitioning=request.device.partitioning.value,
        unit=request.device.unit,
        units_per_device=request.device.units,
        axis=request.device.length,
        devices=devices,
        models=tuple(planned_model(model, devices) for model in request.models),
        headroom=request.headroom,
        stp=None,
        is_proved=first.is_proved and second.is_proved,
        solve_s=solve_s,
    )


def fleet_ways(request: plans.PlanRequest) -> dict[tuple[str, int], one_device.Way]:
    """The best way of each model at each number of units within its target. Raises PlanInfeasible for a model without
    any.

    The neighbours are not known yet. So every model of the plan counts as a neighbour of every model, also of itself,
    on any part but a whole device.
    """
    names = [model.name for model in request.models]
    found: dict[tuple[str, int], one_device.Way] = {}
    for model in request.models:
        speeds = ModelSpeeds(model.rows)
        slowdowns = {
            part.units: request.slowdown(model.name, [] if part is request.device.whole else names)
            for part in request.device.parts
        }
        for part in request.device.parts:
            way = one_device.best_way(request, model, speeds, part, slowdowns[part.units])
            if way is not None:
                found[model.name, part.units] = way
        if not any(name == model.name for name, _ in found):
            raise PlanInfeasible(one_device.explain_no_way(request, model, speeds, slowdowns))
    return found


def _needed(request: plans.PlanRequest) -> dict[str, float]:
    """Requests a second that each model's parts must serve together."""
    return {model.name: (model.rate_per_s or 0.0) * (1 + request.headroom) for model in request.models}


def planned_model(model: plans.ModelDemand, devices: tuple[tuple[plans.PlannedPart, ...], ...]) -> plans.PlannedModel:
    """A model with the capacity of all its parts together."""
    capacity = math.fsum(part.throughput_per_s for parts in devices for part in parts if part.model == model.name)
    return plans.PlannedModel(model.name, model.rate_per_s, capacity, model.latency_s)


@dataclass
class _FleetProgram:
    """Its variables are the number of devices, the number of each part at each place, and gaps of length 1 at each
    place. The last are the parts of each size for each model.
    """

    device: DeviceType
    ways: Mapping[tuple[str, int], one_device.Way]
    needed: Mapping[str, float]
    devices: int = 0
    """index of the number of devices"""
    _arcs: list[tuple[int, DevicePart, int]] = field(default_factory=list)
    """index, part, place"""
    _gaps: list[int] = field(default_factory=list)
    """index by place"""
    _taken: dict[tuple[str, int], int] = field(default_factory=dict)
    """index by model and units"""
    _size: int = 1

    def __post_init__(self) -> None:
        used = {units for _, units in self.ways}
        self._arcs = [
            (self._new(), part, place) for part in self.device.parts if part.units in used for place in part.places
        ]
        self._gaps = [self._new() for _ in range(self.device.length)]
        self._taken = {key: self._new() for key in self.ways}

    def _new(self) -> int:
        self._size += 1
        return self._size - 1

    def fewest_devices(self) -> one_device.IntegerProgram:
        return one_device.IntegerProgram(self._costs({self.devices: 1.0}), self._constraints(self.needed))

    def fewest_units(self, count: int) -> one_device.IntegerProgram:
        """The fewest units with `count` devices."""
        costs = self._costs({index: float(units) for (_, units), index in self._taken.items()})
        return one_device.IntegerProgram(
            costs, [*self._constraints(self.needed), one_device.Constraint({self.devices: 1.0}, count, count)]
        )

    def most_of(self, model: str, count: int) -> float:
        """The most requests a second of a model that `count` devices serve beside the others; -1 without a solution."""
        costs = self._costs(
            {index: -self.ways[key].throughput_per_s for key, index in self._taken.items() if key[0] == model}
        )
        others = {name: rate for name, rate in self.needed.items() if name != model}
        found = one_device.solve(
            one_device.IntegerProgram(
                costs, [*self._constraints(others), one_device.Constraint({self.devices: 1.0}, count, count)]
            )
        )
        if found is None:
            return -1.0
        return -math.fsum(cost * value for cost, value in zip(costs, found.values, strict=True))

    def _costs(self, costs: Mapping[int, float]) -> list[float]:
        return [costs.get(index, 0.0) for index in range(self._size)]

    def _constraints(self, needed: Mapping[str, float]) -> list[one_device.Constraint]:
        return [*self._flow(), *self._sizes(), *(self._rate(name, rate) for name, rate in needed.items())]

    def _flow(self) -> list[one_device.Constraint]:
        """Each place of the axis has as many leaving paths as arriving ones; paths begin at the start and end at the
        end.
        """
        balance: list[dict[int, float]] = [{} for _ in range(self.device.length + 1)]
        for index, part, place in self._arcs:
            balance[place][index] = 1.0
            balance[place + part.length][index] = -1.0
        for place, index in enumerate(self._gaps):
            balance[place][index] = 1.0
            balance[place + 1][index] = -1.0
        balance[0][self.devices] = -1.0
        balance[-1][self.devices] = 1.0
        return [one_device.Constraint(terms, 0.0, 0.0) for terms in balance]

    def _sizes(self) -> list[one_device.Constraint]:
        """The layout has at least as many parts of each size as models take; unused parts are not made."""
        terms: dict[int, dict[int, float]] = {}
        for index, part, _ in self._arcs:
            terms.setdefault(part.units, {})[index] = 1.0
        for (_, units), index in self._taken.items():
            terms[units][index] = -1.0
        return [one_device.Constraint(each, 0.0, math.inf) for each in terms.values()]

    def _rate(self, model: str, rate: float) -> one_device.Constraint:
        """Throughput over the rate, so that the solver's tolerance is the same for all models. A part that suffices
        alone counts as 1. That changes no whole solution, and tightens the relaxation.
        """
        terms = {
            index: min(self.ways[key].throughput_per_s / rate, 1.0)
            for key, index in self._taken.items()
            if key[0] == model
        }
        return one_device.Constraint(terms, 1.0, math.inf)

    def decode(self, solution: one_device.Solution) -> tuple[tuple[plans.PlannedPart, ...], ...]:
        """The flow as paths. Their parts get models as long as there are any; the fullest devices come first."""
        arcs = {(part.units, place): solution.values[index] for index, part, place in self._arcs}
        waiting = {
            units: [
                name for (name, of), index in self._taken.items() if of == units for _ in range(solution.values[index])
            ]
            for units in self.device.by_units
        }
        devices = []
        for _ in range(solution.values[self.devices]):
            path = self._path(arcs)
            named = [(units, place, waiting[units].pop(0)) for units, place in path if waiting[units]]
            devices.append(self._planned(named))
        return tuple(sorted(filter(None, devices), key=lambda parts: sorted(-part.units for part in parts)))

    def _path(self, arcs: dict[tuple[int, int], int]) -> list[tuple[int, int]]:
        """Units and place of each part of one path, which is removed from `arcs`."""
        path, place = [], 0
        while place < self.device.length:
            units = max((of for (of, at), left in arcs.items() if at == place and left), default=0)
            if units:
                arcs[units, place] -= 1
                path.append((units, place))
                place += self.device.by_units[units].length
            else:  # what flows on from here goes over the gap
                place += 1
        return path

    def _planned(self, named: list[tuple[int, int, str]]) -> tuple[plans.PlannedPart, ...]:
        """The parts of a device; MIG instances at the places that leave most to others."""
        if self.device.partitioning is Partitioning.MIG and named:
            places = least_wasteful([units for units, _, _ in named])
            named = [(units, places[units].pop(0), name) for units, _, name in named]
        parts = (self.ways[name, units].planned(name, self.device.by_units[units], at) for units, at, name in named)
        return tuple(sorted(parts, key=lambda part: part.place))


def _check_reach(request: plans.PlanRequest, program: _FleetProgram) -> None:
    """Raises PlanInfeasible for a rate so high that every part's throughput is lost to the solver's tolerance."""
    for model in request.models:
        most = max(way.throughput_per_s for (name, _), way in program.ways.items() if name == model.name)
        if most < program.needed[model.name] * _NOTHING:
            raise PlanInfeasible(
                f"{request.count or plans.MOST_DEVICES} x {request.device.name} cannot serve these rates: "
                f"'{model.name}' needs {model.rate_per_s or 0.0:g} requests/s, and a part serves at most {most:.4g}"
            )


def _too_few(request: plans.PlanRequest, program: _FleetProgram, count: int) -> str:
    """The message for too few devices: it names the model that needs the smallest reduction of its rate."""
    allowed = request.count or plans.MOST_DEVICES
    heaviest = sorted(program.needed, key=lambda name: -program.needed[name] / _most_per_unit(program, name))
    most = {name: program.most_of(name, allowed) for name in heaviest[:_EXPLAINED]}
    kept = {name: most[name] / (program.needed[name] or 1.0) for name in most if most[name] > 0}
    devices = f"{allowed} x {request.device.name}"
    with_headroom = f" with {request.headroom * 100:.0f} % headroom" if request.headroom else ""
    if not kept:
        return (
            f"{devices} cannot serve these rates{with_headroom}, whichever one model is left out; "
            f"'{heaviest[0]}' needs the most; {count} devices would suffice"
        )
    name = max(kept, key=lambda each: kept[each])
    rate = program.needed[name] / (1 + request.headroom)
    return (
        f"{devices} cannot serve these rates{with_headroom}: the limiting model is '{name}'. Beside the others they "
        f"serve {rate * kept[name]:.4g} of its {rate:g} requests/s; {count} devices or this rate would suffice"
    )


def _most_per_unit(program: _FleetProgram, name: str) -> float:
    """The highest throughput of a model per unit, over all parts."""
    return max(way.throughput_per_s / units for (of, units), way in program.ways.items() if of == name)


REFUSED = 3
"""exit code of the process that makes a plan"""
_MEMORY_BYTES = 4 << 30
_NICE = 10
"""its parent goes first"""
HEADROOMS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
"""tried in this order, from the requested headroom on"""


def make_plan(request: plans.PlanRequest, *, simulated: bool = False, seed: int = 0) -> plans.Plan:
    """The fewest devices, then the fewest units for models with rates; otherwise the best layout of one device.

    With `simulated` the plan carries the results of a simulation. It has the least headroom of HEADROOMS, from
    `request.headroom` on, at which every model's p99 is within its target. Raises BadRequest for a contradictory
    request, PlanInfeasible, and FractuneError without the solver.
    """
    request.check()
    if simulated and not request.is_fleet:
        raise BadRequest("a simulation needs rates; give every model rate_per_s and latency_ms")
    if simulated and _is_limited(request):
        raise BadRequest("plans of CPU limits cannot be simulated; try each limit with 'fractune fit --verify' instead")
    plan = plan_fleet(request) if request.is_fleet else one_device.plan_one(request)
    if simulated:
        plan = _with_enough_headroom(request, plan, seed)
    return replace(plan, notes=(*plan.notes, *_notes(request, plan)))


def _with_enough_headroom(request: plans.PlanRequest, plan: plans.Plan, seed: int) -> plans.Plan:
    tried = [request.headroom, *(each for each in HEADROOMS if each > request.headroom)]
    late = ""
    for headroom in tried:
        if headroom > request.headroom:
            try:
                plan = plan_fleet(replace(request, headroom=headroom))
            except PlanInfeasible as error:
                raise PlanInfeasible(f"simulated: {late}, and more headroom does not fit: {error}") from error
        plan = replace(plan, simulated=plans.simulate(plan, seed=seed))
        worst = max((each for each in plan.simulated if not each.holds), key=lambda each: each.late, default=None)
        if worst is None:
            return plan
        late = (
            f"with {headroom * 100:.0f} % headroom p99 of '{worst.name}' is {worst.p99_s * 1e3:.4g} ms, over its target"
        )
    raise PlanInfeasible(f"simulated: {late}; give it a longer target, or ways with smaller batches")


def _remedy(request: plans.PlanRequest) -> str:
    """How predicted times become measured ones."""
    return "fractune fit --verify tries a limit" if _is_limited(request) else "--measure times them"


def _is_limited(request: plans.PlanRequest) -> bool:
    return request.device.partitioning is Partitioning.LIMIT


def _notes(request: plans.PlanRequest, plan: plans.Plan) -> list[str]:
    """Facts that a reader must know before confirming the plan."""
    parts = [part for parts in plan.devices for part in parts]
    notes = []
    if request.device.kind == CUDA:
        notes.append("not verified on a GPU")
    if plan.simulated:
        needed = f"{plan.headroom * 100:.0f} % headroom"
        notes.append(f"simulated with Poisson arrivals and one queue for each model; p99 needs {needed}")
    if not plan.is_proved:
        notes.append("the solver ran out of time: there may be a better plan")
    predicted = [part for part in parts if part.basis is Basis.PREDICTED]
    if predicted:
        worst = max(part.error for part in predicted)
        notes.append(
            f"the times of {len(predicted)} of {len(parts)} parts are predicted, and padded by the prediction error "
            f"(up to {worst * 100:.1f} %); {_remedy(request)}"
        )
    summed = [part for part in parts if part.basis is Basis.OPERATORS]
    if summed:
        notes.append(
            f"the times of {len(summed)} of {len(parts)} parts are sums over the model's operators, because the whole "
            "model was not timed there; 'fractune tune' and --measure time it"
        )
    if disturbed := [each.name for each in request.models if any(row.basis is Basis.DISTURBED for row in each.rows)]:
        notes.append(
            f"other programs disturbed times of {', '.join(disturbed)}: models take at most as long, so the plan may "
            "take more than they need; time them again on a quieter machine"
        )
    slowed = [part for part in parts if part.slowdown > 1]
    assumed = [part for part in slowed if part.slowdown == 1 + request.penalty]
    if assumed:
        notes.append(
            f"{len(assumed)} of {len(parts)} parts are assumed to lose {request.penalty * 100:.0f} % by their "
            "co-runners; the loss was not measured"
        )
    return notes


def main(parent_pid: int) -> int:
    """A process that makes one plan: `python -m fractune_core.planning.planner PARENT_PID`.

    It reads a MakePlanRequest from standard input, and writes a Plan to standard output. A refusal ends it with
    REFUSED: then the output is the error's name and, on further lines, its message.
    """
    die_with_parent(parent_pid)
    os.nice(_NICE)
    limit_process(_MEMORY_BYTES)
    message = pb.MakePlanRequest.FromString(sys.stdin.buffer.read())
    try:
        plan = make_plan(request_from_proto(message), simulated=message.simulate, seed=message.seed)
    except FractuneError as error:
        sys.stdout.write(f"{type(error).__name__}\n{error}")
        return REFUSED
    sys.stdout.buffer.write(to_proto(plan, pb.Plan).SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
