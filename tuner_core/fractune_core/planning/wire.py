"""Requests for plans, and plans, to and from the messages of the public contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning.devices import DeviceType, device_type
from fractune_core.planning.plans import Plan, PlannedModel, PlannedPart, SimulatedModel
from fractune_core.planning.requests import DEFAULT_LATENCY_PART, DEFAULT_PENALTY, ModelDemand, PlanRequest
from fractune_core.planning.speeds import Basis, Row


@dataclass(frozen=True)
class LoggedModel:
    """A model whose times the server's log has."""

    model: str
    """models/SHA256"""
    inputs: Mapping[str, list[int]] = field(default_factory=dict)
    """shapes of inputs that the model leaves open"""
    requests_per_run: int = 1
    """requests that one run serves: its batch"""


RowsOf = Callable[[LoggedModel, DeviceType], tuple[Row, ...]]
"""What a log knows of a model on a device"""


def request_to_proto(
    request: PlanRequest, logged: Mapping[str, LoggedModel], *, simulate: bool, seed: int
) -> pb.MakePlanRequest:
    """`logged` has, by name, the models whose times the server is to look up."""
    device = request.device
    is_cpu = device.kind == "cpu"
    return pb.MakePlanRequest(
        gpu="" if is_cpu else device.name,
        cores=device.units if is_cpu else 0,
        memory_gib=device.memory_gib if is_cpu and math.isfinite(device.memory_gib) else 0.0,
        layouts=device.layouts.value,
        count=request.count or 0,
        models=[_model_to_proto(model, logged.get(model.name)) for model in request.models],
        interference=[
            pb.Interference(model=model, beside=beside, i=i) for (model, beside), i in request.interference.items()
        ],
        penalty=request.penalty,
        headroom=request.headroom,
        latency_part=request.latency_part,
        simulate=simulate,
        seed=seed,
    )


def request_from_proto(message: pb.MakePlanRequest, rows_of: RowsOf) -> PlanRequest:
    """Raises BadRequest, and what `rows_of` raises."""
    device = device_type(message.gpu, message.cores, message.layouts, message.memory_gib)
    return PlanRequest(
        device=device,
        models=tuple(_model_from_proto(model, device, rows_of) for model in message.models),
        count=message.count or None,
        interference={(each.model, each.beside): each.i for each in message.interference},
        penalty=message.penalty if message.HasField("penalty") else DEFAULT_PENALTY,
        headroom=message.headroom,
        latency_part=message.latency_part if message.HasField("latency_part") else DEFAULT_LATENCY_PART,
    )


def _model_to_proto(model: ModelDemand, logged: LoggedModel | None) -> pb.PlanModel:
    message = pb.PlanModel(
        name=model.name,
        rate_per_s=model.rate_per_s,
        latency_s=model.latency_s,
        memory_gib=model.memory_gib,
        rows=[
            pb.PlanRow(
                units=row.units,
                batch=row.batch,
                processes=row.processes,
                throughput_per_s=row.throughput_per_s,
                latency_s=row.latency_s,
                measured=row.basis in (Basis.MEASURED, Basis.OPERATORS),
                operators_only=row.basis is Basis.OPERATORS,
            )
            for row in model.rows
        ],
    )
    if logged is not None:
        message.model = logged.model
        message.requests_per_run = logged.requests_per_run
        for name, dims in logged.inputs.items():
            message.inputs[name].dims.extend(dims)
    return message


def _model_from_proto(message: pb.PlanModel, device: DeviceType, rows_of: RowsOf) -> ModelDemand:
    rows = tuple(_row_from_proto(row, device) for row in message.rows)
    if message.model:
        inputs = {name: list(shape.dims) for name, shape in message.inputs.items()}
        rows += rows_of(LoggedModel(message.model, inputs, message.requests_per_run or 1), device)
    return ModelDemand(
        name=message.name,
        rows=rows,
        rate_per_s=message.rate_per_s if message.HasField("rate_per_s") else None,
        latency_s=message.latency_s if message.HasField("latency_s") else None,
        memory_gib=message.memory_gib,
    )


def _row_from_proto(row: pb.PlanRow, device: DeviceType) -> Row:
    units = device.units_of(row.share) if row.share else row.units
    if not 1 <= units <= device.units:
        raise BadRequest(f"profile: units is {units}; {device.name} by {device.layouts} has 1 to {device.units}")
    measured = Basis.OPERATORS if row.operators_only else Basis.MEASURED
    basis = measured if row.measured else Basis.STATED
    return Row(units, row.batch or 1, row.processes or 1, row.throughput_per_s, row.latency_s, basis)


def plan_to_proto(plan: Plan) -> pb.Plan:
    return pb.Plan(
        device=plan.device,
        layouts=plan.layouts,
        unit=plan.unit,
        units_per_device=plan.units_per_device,
        axis=plan.axis,
        devices=[
            pb.PlannedDevice(
                parts=[
                    pb.PlannedPart(
                        share=part.share,
                        units=part.units,
                        place=part.place,
                        length=part.length,
                        model=part.model,
                        batch=part.batch,
                        processes=part.processes,
                        throughput_per_s=part.throughput_per_s,
                        latency_s=part.latency_s,
                        basis=part.basis.value,
                        error=part.error,
                        slowdown=part.slowdown,
                    )
                    for part in parts
                ]
            )
            for parts in plan.devices
        ],
        models=[
            pb.PlannedModel(
                name=model.name,
                rate_per_s=model.rate_per_s,
                capacity_per_s=model.capacity_per_s,
                latency_s=model.latency_s,
                speed=model.speed,
                speed_error=model.speed_error,
            )
            for model in plan.models
        ],
        headroom=plan.headroom,
        stp=plan.stp,
        proved=plan.is_proved,
        solve_s=plan.solve_s,
        simulated=[
            pb.SimulatedModel(
                name=each.name,
                requests=each.requests,
                p50_s=each.p50_s,
                p99_s=each.p99_s,
                late=each.late,
                holds=each.holds,
            )
            for each in plan.simulated
        ],
        notes=plan.notes,
    )


def plan_from_proto(message: pb.Plan) -> Plan:
    return Plan(
        device=message.device,
        layouts=message.layouts,
        unit=message.unit,
        units_per_device=message.units_per_device,
        axis=message.axis,
        devices=tuple(tuple(map(_part_from_proto, device.parts)) for device in message.devices),
        models=tuple(
            PlannedModel(
                name=model.name,
                rate_per_s=model.rate_per_s if model.HasField("rate_per_s") else None,
                capacity_per_s=model.capacity_per_s,
                latency_s=model.latency_s if model.HasField("latency_s") else None,
                speed=model.speed if model.HasField("speed") else None,
                speed_error=model.speed_error,
            )
            for model in message.models
        ),
        headroom=message.headroom,
        stp=message.stp if message.HasField("stp") else None,
        is_proved=message.proved,
        solve_s=message.solve_s,
        simulated=tuple(
            SimulatedModel(each.name, each.requests, each.p50_s, each.p99_s, each.late, each.holds)
            for each in message.simulated
        ),
        notes=tuple(message.notes),
    )


def _part_from_proto(part: pb.PlannedPart) -> PlannedPart:
    return PlannedPart(
        share=part.share,
        units=part.units,
        place=part.place,
        length=part.length,
        model=part.model,
        batch=part.batch,
        processes=part.processes,
        throughput_per_s=part.throughput_per_s,
        latency_s=part.latency_s,
        basis=Basis(part.basis),
        error=part.error,
        slowdown=part.slowdown,
    )
