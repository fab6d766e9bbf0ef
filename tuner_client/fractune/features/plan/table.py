"""A plan as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fractune.text.rendering import Column, Table
from fractune.text.text import percent_text, time_text
from fractune_core.planning.plans import Plan, PlannedModel, PlannedPart, SimulatedModel
from fractune_core.planning.speeds import Basis

_DISPENSABLE = {"capacity": 2, "p50": 1}


def parts_table(plan: Plan) -> Table:
    """A row for each part of each device."""
    columns = (
        *(Column("device", numbers=True), Column("share"), Column("at", numbers=True, dispensable=3)),
        *(Column("model", wraps_at=12), Column("batch", numbers=True, dispensable=2)),
        *(Column("processes", numbers=True, dispensable=1), Column("requests/s", numbers=True)),
        *(Column("latency", numbers=True), Column("time is", wraps_at=12)),
    )
    return Table(
        title=_title(plan),
        columns=columns,
        cells=tuple(
            (
                str(number),
                part.share,
                str(part.place),
                part.model,
                str(part.batch),
                str(part.processes),
                rate_text(part.throughput_per_s),
                time_text(part.latency_s),
                _basis(part),
            )
            for number, parts in enumerate(plan.devices)
            for part in parts
        ),
        rows=tuple({"device": number, **asdict(part)} for number, parts in enumerate(plan.devices) for part in parts),
        notes=(*summary(plan), *plan.notes),
    )


def models_table(plan: Plan) -> Table:
    """A row for each model: its demand, its supply, and the results of a simulation."""
    simulated = {each.name: each for each in plan.simulated}
    numbers = (Column(each, numbers=True, dispensable=_DISPENSABLE.get(each, 0)) for each in _headings(plan))
    return Table(
        title="models" if not simulated else "models (p50, p99 and late are simulated)",
        columns=(Column("model", wraps_at=12), *numbers),
        cells=tuple((model.name, *_model_cells(plan, model, simulated.get(model.name))) for model in plan.models),
        rows=tuple(plan_json(plan)["models"]),
    )


def summary(plan: Plan) -> list[str]:
    """A summary of the plan in a sentence or two."""
    units = f"{plan.units_used} of {len(plan.devices) * plan.units_per_device} {plan.unit}s"
    if plan.stp is not None:
        return [f"STP {plan.stp:.2f}: {len(plan.models)} jobs on {units} do the work of {plan.stp:.2f} whole devices"]
    count = len(plan.devices)
    head = f" with {plan.headroom * 100:.0f} % headroom" if plan.headroom else ""
    return [f"{count} x {plan.device}{head}: {units}, solved in {plan.solve_s:.2f} s"]


def plan_json(plan: Plan) -> dict[str, Any]:
    """Times in seconds, parts as fractions; None if not known."""
    simulated = {each.name: asdict(each) for each in plan.simulated}
    return {
        "device": plan.device,
        "layouts": plan.partitioning,
        "unit": plan.unit,
        "units_per_device": plan.units_per_device,
        "units_used": plan.units_used,
        "headroom": plan.headroom,
        "stp": plan.stp,
        "proved": plan.is_proved,
        "solve_s": plan.solve_s,
        "devices": [[asdict(part) for part in parts] for parts in plan.devices],
        "models": [
            {**asdict(model), "utilisation": model.utilisation, "simulated": simulated.get(model.name)}
            for model in plan.models
        ],
        "notes": list(plan.notes),
    }


def rate_text(per_s: float) -> str:
    """`1374`, `95.2`, `0.104`."""
    return f"{per_s:.0f}" if per_s >= 99.5 else f"{per_s:.3g}"


def _title(plan: Plan) -> str:
    return f"plan for {plan.device} by {plan.partitioning}, to be confirmed by a person"


def _basis(part: PlannedPart) -> str:
    text = part.basis.value
    if part.basis is Basis.PREDICTED:
        text += f" (+{percent_text(part.error)})"
    return f"{text}, x{part.slowdown:.2f} by co-runners" if part.slowdown > 1 else text


def _headings(plan: Plan) -> list[str]:
    if plan.stp is not None:
        return ["of whole-device speed", "prediction error"]
    headings = ["rate", "capacity", "used", "target"]
    return [*headings, "p50", "p99", "late"] if plan.simulated else headings


def _model_cells(plan: Plan, model: PlannedModel, simulated: SimulatedModel | None) -> list[str]:
    if plan.stp is not None:
        return [percent_text(model.speed), percent_text(model.speed_error) if model.speed_error else "measured"]
    cells = [
        f"{rate_text(model.rate_per_s or 0.0)}/s",
        f"{rate_text(model.capacity_per_s)}/s",
        percent_text(model.utilisation),
        time_text(model.latency_s),
    ]
    if simulated is not None:
        cells += [time_text(simulated.p50_s), time_text(simulated.p99_s), percent_text(simulated.late)]
    return cells
