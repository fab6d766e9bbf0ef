"""From a request to a plan: its mode, and with a simulation the least headroom at which p99 holds."""

from dataclasses import replace

from fractune_core.errors import BadRequest, PlanInfeasible
from fractune_core.planning.devices import Partitioning
from fractune_core.planning.fleet import plan_fleet
from fractune_core.planning.one_device import plan_one
from fractune_core.planning.plans import Plan, simulate
from fractune_core.planning.requests import PlanRequest
from fractune_core.planning.speeds import Basis
from fractune_core.share_kinds import CUDA

HEADROOMS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
"""tried in this order, from the requested headroom on"""


def make_plan(request: PlanRequest, *, simulated: bool = False, seed: int = 0) -> Plan:
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
    plan = plan_fleet(request) if request.is_fleet else plan_one(request)
    if simulated:
        plan = _with_enough_headroom(request, plan, seed)
    return replace(plan, notes=(*plan.notes, *_notes(request, plan)))


def _with_enough_headroom(request: PlanRequest, plan: Plan, seed: int) -> Plan:
    tried = [request.headroom, *(each for each in HEADROOMS if each > request.headroom)]
    late = ""
    for headroom in tried:
        if headroom > request.headroom:
            try:
                plan = plan_fleet(replace(request, headroom=headroom))
            except PlanInfeasible as error:
                raise PlanInfeasible(f"simulated: {late}, and more headroom does not fit: {error}") from error
        plan = replace(plan, simulated=simulate(plan, seed=seed))
        worst = max((each for each in plan.simulated if not each.holds), key=lambda each: each.late, default=None)
        if worst is None:
            return plan
        late = (
            f"with {headroom * 100:.0f} % headroom p99 of '{worst.name}' is {worst.p99_s * 1e3:.4g} ms, over its target"
        )
    raise PlanInfeasible(f"simulated: {late}; give it a longer target, or ways with smaller batches")


def _remedy(request: PlanRequest) -> str:
    """How predicted times become measured ones."""
    return "fractune fit --verify tries a limit" if _is_limited(request) else "--measure times them"


def _is_limited(request: PlanRequest) -> bool:
    return request.device.partitioning is Partitioning.LIMIT


def _notes(request: PlanRequest, plan: Plan) -> list[str]:
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
