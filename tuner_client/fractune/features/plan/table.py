"""A plan as tables and as JSON."""

import csv
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fractune.text.rendering import Column, Table, save_figure
from fractune.text.text import percent_text, time_text
from fractune.text.toml_table import TableReader
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.plans import Plan, PlannedModel, PlannedPart, SimulatedModel
from fractune_core.planning.speeds import Basis, Row, measured_rows
from fractune_core.share_kinds import CUDA
from fractune_core.shares import Device

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
        title=f"plan for {plan.device} by {plan.partitioning}, to be confirmed by a person",
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


_DEVICES_AT_MOST = 40
"""more would be too small to read"""
_COLOURS = (
    *("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2", "#D55E00"),
    *("#AADDFF", "#FFD699", "#88CCBB", "#DDDDDD", "#E5BFD3"),
)
"""of Okabe and Ito, which colour-blind people tell apart; then lighter ones. With more models they come again"""
_DARK = {"#0072B2", "#D55E00", "#009E73"}


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw the devices of a plan, the first 40 if there are more. Raises StateUnusable."""
    from matplotlib.figure import Figure

    drawn = plan.devices[:_DEVICES_AT_MOST]
    names = [model.name for model in plan.models]
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}
    figure = Figure(figsize=(9.0, 1.6 + 0.55 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    for row, parts in enumerate(drawn):
        label = "not used" if sum(part.length for part in parts) < plan.axis else None
        axes.barh(row, plan.axis, height=0.8, color="none", edgecolor="0.7", hatch="////", linewidth=0.6, label=label)
        for part in parts:
            _draw_part(axes, row, part, plan.axis, colours[part.model])
    axes.set_yticks(range(len(drawn)), [f"device {number}" for number in range(len(drawn))])
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlim(0, plan.axis)
    axes.set_xticks(range(plan.axis + 1) if plan.axis <= 16 else [0, plan.axis])
    axes.set_xlabel(_axis_label(plan))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    left_out = len(plan.devices) - len(drawn)
    title = summary(plan)[0].partition(", solved")[0]
    axes.set_title(f"{title} ({left_out} more not drawn)" if left_out else title, fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles[:1], labels[:1], loc="outside lower right", fontsize=8)
    save_figure(figure, path)


def _axis_label(plan: Plan) -> str:
    if plan.partitioning != "mig":
        return f"{plan.unit}s, from first to last"
    return f"memory slices; the title counts compute slices, {plan.units_per_device} a device"


def _draw_part(axes: Any, row: int, part: PlannedPart, axis: int, colour: str) -> None:
    axes.barh(row, part.length, left=part.place, height=0.8, color=colour, edgecolor="black", linewidth=0.8)
    room = int(part.length / axis * 130)
    """characters that fit"""
    share = part.share.partition(":")[2] or part.share
    lines = [_fitted(part.model, room), _fitted(f"{share}, {rate_text(part.throughput_per_s)}/s", room)]
    axes.text(
        part.place + part.length / 2,
        row,
        "\n".join(lines),
        ha="center",
        va="center",
        fontsize=7,
        color="white" if colour in _DARK else "black",
    )


def _fitted(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"


_COLUMNS = ("share", "batch", "processes", "throughput_per_s", "latency_ms")


def stated_row(table: TableReader, device: DeviceType) -> Row:
    """A row of a profile: `share`, and the throughput of all its processes, or the latency of a batch, or both."""
    table.check_keys(*_COLUMNS)
    batch, processes = table.whole("batch", 1), table.whole("processes", 1)
    throughput, latency_ms = table.number("throughput_per_s", 0.0), table.number("latency_ms", 0.0)
    if not table.has("share"):
        raise BadRequest(f"{table.where}: the share is missing; write share = '{device.whole.share}' or another")
    given = [value for value in (throughput, latency_ms) if value]
    if not given or min(given) < 0 or batch < 1 or processes < 1:
        raise BadRequest(
            f"{table.where}: batch and processes must be 1 or more, and throughput_per_s or latency_ms above 0; they "
            f"are {batch}, {processes}, {throughput:g}, {latency_ms:g}"
        )
    throughput = throughput or batch * processes / latency_ms * 1e3
    latency_s = latency_ms / 1e3 or batch * processes / throughput
    return Row(device.units_of(table.text("share")), batch, processes, throughput, latency_s)


def csv_rows(path: Path, model: str, device: DeviceType) -> tuple[Row, ...]:
    """The rows of a CSV file with the columns of a profile; with a column `model`, only those of this model.

    Raises BadRequest.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            found = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadRequest(f"model '{model}': cannot read its profile {path} ({reason})") from error
    mine = [line for line in found if line.get("model", model) == model]
    if not mine:
        raise BadRequest(f"model '{model}': its profile {path} has no row of it")
    return tuple(
        stated_row(TableReader(f"{path.name}: row {at} of '{model}'", _typed(line)), device)
        for at, line in enumerate(mine, 1)
    )


def bundle_rows(path: Path, device: DeviceType, batch: int, core_speed: float | None = None) -> tuple[Row, ...]:
    """The times of a bundle on this device, of the fastest variant at each share; one run serves `batch` requests.

    With `core_speed`, of a core of this CPU over one of the bundle's, they may be of another CPU: rows are then stated.
    Raises BadBundle for a bundle of another device, or one without times at such shares.
    """
    bundle = Bundle(path)
    bundle.check_undivided("plan")
    try:
        made_on = Device.from_json(bundle.manifest["device"])
        different = device.difference(made_on)
        if different and (core_speed is None or made_on.kind != device.kind):
            raise BadBundle(f"{bundle.name}: made for {different}; {_remedy(device)}")
        operators_s: dict[int, float] = {}
        whole_s: dict[int, float] = {}
        disturbed_s: dict[int, float] = {}
        for mechanism in (device.partitioning.value, "full"):
            fastest = {granted: min(times.values()) for granted, times in bundle.measured(mechanism).items()}
            too_long = bundle.timed(mechanism, disturbed=True)
            for found, held in (*((operators_s, fastest), (whole_s, bundle.timed(mechanism))), (disturbed_s, too_long)):
                places = {device.units_of_granted(granted): secs for granted, secs in held.items()}
                found.update({units: secs for units, secs in places.items() if units is not None})
    finally:
        bundle.close()
    if not operators_s and not whole_s and not disturbed_s:
        raise BadBundle(
            f"{bundle.name}: has no time at a {device.partitioning} share of {device.name}; tune the model there"
        )
    rows = measured_rows(operators_s, whole_s, disturbed_s, batch)
    return rows if core_speed is None else tuple(_at_speed(row, core_speed) for row in rows)


def _remedy(device: DeviceType) -> str:
    if device.kind == CUDA:
        return "give a bundle or a profile of the plan's device"
    shares = ",".join(f"cpu:{1 << power}" for power in range(device.units.bit_length()))
    return (
        f"measure it there ('fractune tune MODEL --shares {shares}'), or state beside the bundle how fast a core of "
        "the plan's device is over one of that machine: core_speed = 1 for as fast"
    )


def _at_speed(row: Row, core_speed: float) -> Row:
    basis = row.basis if row.basis is Basis.DISTURBED else Basis.STATED
    return replace(
        row, throughput_per_s=row.throughput_per_s * core_speed, latency_s=row.latency_s / core_speed, basis=basis
    )


def _typed(line: dict[str, str]) -> dict[str, Any]:
    """Typed values; a text that is not a number stays, and is reported later."""
    kinds = {"batch": int, "processes": int, "throughput_per_s": float, "latency_ms": float}
    typed: dict[str, Any] = {}
    for key, text in line.items():
        if key == "model" or text in (None, ""):
            continue
        try:
            typed[key] = kinds.get(key, str)(text)
        except ValueError:
            typed[key] = text
    return typed
