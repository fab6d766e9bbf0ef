"""Requests for plans to and from the messages of the public contract."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fractune_core.codec.messages import from_lists, from_proto, to_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning.devices import DeviceType, device_type
from fractune_core.planning.plans import MOST_MODELS, ModelDemand, PlanRequest
from fractune_core.planning.speeds import Basis, Row
from fractune_core.share_kinds import CPU


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
"""The knowledge of a log about a model on a device"""


def request_to_proto(
    request: PlanRequest, logged: Mapping[str, LoggedModel], *, simulate: bool, seed: int
) -> pb.MakePlanRequest:
    """`logged` has, by name, the models whose times the server is to look up."""
    device = request.device
    is_cpu = device.kind == CPU
    return to_proto(
        request,
        pb.MakePlanRequest,
        gpu="" if is_cpu else device.name,
        cores=device.units if is_cpu else 0,
        memory_gib=device.memory_gib if is_cpu and math.isfinite(device.memory_gib) else 0.0,
        layouts=device.partitioning.value,
        models=[_model_to_proto(model, logged.get(model.name)) for model in request.models],
        interference=[
            pb.Interference(model=model, beside=beside, i=i) for (model, beside), i in request.interference.items()
        ],
        simulate=simulate,
        seed=seed,
    )


def add_logged_rows(message: pb.MakePlanRequest, rows_of: RowsOf) -> None:
    """Replace the models whose times the log has by these times. Raises BadRequest, and what `rows_of` raises."""
    if len(message.models) > MOST_MODELS:
        raise BadRequest(f"the plan has {len(message.models)} models; it may have at most {MOST_MODELS}")
    device = device_type(message.gpu, message.cores, message.layouts, message.memory_gib)
    for model in message.models:
        if model.model:
            model.rows.extend(map(_row_to_proto, rows_of(from_proto(LoggedModel, model), device)))
            model.model = ""


def request_from_proto(message: pb.MakePlanRequest) -> PlanRequest:
    """A request without models of the log: `add_logged_rows` replaces them. Raises BadRequest."""
    device = device_type(message.gpu, message.cores, message.layouts, message.memory_gib)
    return from_proto(
        PlanRequest,
        message,
        device=device,
        models=tuple(_model_from_proto(model, device) for model in message.models),
        interference={(each.model, each.beside): each.i for each in message.interference},
    )


def _model_to_proto(model: ModelDemand, logged: LoggedModel | None) -> pb.PlanModel:
    known = {} if logged is None else {"model": logged.model, "requests_per_run": logged.requests_per_run}
    inputs = {} if logged is None else from_lists(logged.inputs, pb.Shape)
    return to_proto(model, pb.PlanModel, rows=list(map(_row_to_proto, model.rows)), inputs=inputs, **known)


def _row_to_proto(row: Row) -> pb.PlanRow:
    return to_proto(
        row,
        pb.PlanRow,
        measured=row.basis in (Basis.MEASURED, Basis.OPERATORS, Basis.DISTURBED),
        operators_only=row.basis is Basis.OPERATORS,
        disturbed=row.basis is Basis.DISTURBED,
    )


def _model_from_proto(message: pb.PlanModel, device: DeviceType) -> ModelDemand:
    return from_proto(ModelDemand, message, rows=tuple(_row_from_proto(row, device) for row in message.rows))


def _row_from_proto(row: pb.PlanRow, device: DeviceType) -> Row:
    units = device.units_of(row.share) if row.share else row.units
    if not 1 <= units <= device.units:
        raise BadRequest(f"profile: units is {units}; {device.name} by {device.partitioning} has 1 to {device.units}")
    measured = Basis.OPERATORS if row.operators_only else Basis.DISTURBED if row.disturbed else Basis.MEASURED
    basis = measured if row.measured else Basis.STATED
    return from_proto(Row, row, units=units, batch=row.batch or 1, processes=row.processes or 1, basis=basis)
