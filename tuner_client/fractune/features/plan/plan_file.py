"""The plan file, TOML: its possible content, and the request that it makes. docs/sharing.md shows one."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune.features.plan.table import bundle_rows, csv_rows, stated_row
from fractune.text.toml_table import TableReader, read_toml
from fractune_core.errors import BadRequest
from fractune_core.planning import plans
from fractune_core.planning.devices import DeviceType, Partitioning, device_type
from fractune_core.planning.speeds import Row, limited_rows
from fractune_core.share_kinds import CPU

_SOURCES = ("profile", "bundle", "model")


@dataclass(frozen=True)
class LogModel:
    """A model with times from a tuning log."""

    path: Path
    inputs: dict[str, list[int]] = field(default_factory=dict)
    requests_per_run: int = 1


@dataclass(frozen=True)
class PlanFile:
    request: plans.PlanRequest
    """without rows if the log has to supply them"""
    logged: Mapping[str, LogModel]
    """by the name of the model"""
    paired_as: Mapping[str, str]
    """the names in measured pairs, by the name of the model"""


def read_plan(
    source: str | os.PathLike[str] | Mapping[str, Any], *, gpus: int | None = None, partitioning: str = ""
) -> PlanFile:
    """Read a plan file, or a mapping with its content; `gpus` and `partitioning` override it.

    Paths are relative to the file's folder. Raises BadRequest for an unreadable file or an impossible value, and
    BadBundle.
    """
    if isinstance(source, Mapping):
        name, folder, content = "plan", Path(), dict(source)
    else:
        path = Path(source)
        name, folder, content = path.name, path.parent, read_toml(path, "the plan file")
    whole = TableReader(name, content)
    whole.check_keys("device", "models", "interference", "headroom", "penalty", "latency_part")
    device, count = _device(whole.table("device"), partitioning)
    models, logged, paired_as = [], {}, {}
    for table in whole.tables("models"):
        model, log_model = _model(table, device, folder)
        models.append(model)
        paired_as[model.name] = _paired_as(table, model.name)
        if log_model is not None:
            logged[model.name] = log_model
    request = plans.PlanRequest(
        device=device,
        models=tuple(models),
        count=_count(count if gpus is None else gpus),
        interference=_interference(whole),
        penalty=whole.number("penalty", plans.DEFAULT_PENALTY),
        headroom=whole.number("headroom", 0.0),
        latency_part=whole.number("latency_part", plans.DEFAULT_LATENCY_PART),
    )
    return PlanFile(request, logged, paired_as)


def _device(table: TableReader, partitioning: str) -> tuple[DeviceType, int | None]:
    table.check_keys("gpu", "cores", "memory_gib", "partitioning", "count")
    count = table.whole("count", 0)
    partitioning = partitioning or table.text("partitioning")
    found = device_type(table.text("gpu"), table.whole("cores", 0), partitioning, table.number("memory_gib", 0.0))
    return found, count if table.has("count") else None


def _model(table: TableReader, device: DeviceType, folder: Path) -> tuple[plans.ModelDemand, LogModel | None]:
    name = table.text("name")
    table = table.called(f"model '{name}'")
    table.check_keys(
        *("name", "rate_per_s", "latency_ms", "memory_gib", "inputs", "requests_per_run"),
        *(*_SOURCES, "paired_as", "core_speed"),
    )
    given = [key for key in _SOURCES if table.has(key)]
    if len(given) != 1:
        has = " and ".join(given) or "none"
        raise BadRequest(f"{table.where}: give one of {', '.join(_SOURCES)} to say how fast it is; it has {has}")
    batch = table.whole("requests_per_run", 1)
    if batch < 1:
        raise BadRequest(f"{table.where}: requests_per_run is {batch}; it must be 1 or more")
    core_speed = _core_speed(table, device)
    rows: tuple[Row, ...] = ()
    logged = None
    if table.has("profile"):
        rows = _profile(table, name, device.timed_by, folder)
    elif table.has("bundle"):
        rows = bundle_rows(folder / table.text("bundle"), device.timed_by, batch, core_speed)
    elif device.partitioning is Partitioning.LIMIT:
        raise BadRequest(f"{table.where}: limits are predicted from a bundle or a profile; give one in place of model")
    else:
        logged = LogModel(folder / table.text("model"), table.shapes("inputs"), batch)
    if device.partitioning is Partitioning.LIMIT:
        rows = limited_rows(rows, device)
    demand = plans.ModelDemand(
        name=name,
        rows=rows,
        rate_per_s=table.number("rate_per_s", math.nan) if table.has("rate_per_s") else None,
        latency_s=table.number("latency_ms", math.nan) / 1e3 if table.has("latency_ms") else None,
        memory_gib=table.number("memory_gib", 0.0),
    )
    return demand, logged


def _core_speed(table: TableReader, device: DeviceType) -> float | None:
    if not table.has("core_speed"):
        return None
    found = table.number("core_speed", math.nan)
    if not table.has("bundle") or device.kind != CPU:
        raise BadRequest(f"{table.where}: core_speed scales the times of a bundle to the cores of a CPU; leave it out")
    if not 0 < found < math.inf:
        raise BadRequest(f"{table.where}: core_speed is {found:g}; it must be above 0, 1 being as fast")
    return found


def _paired_as(table: TableReader, name: str) -> str:
    """A bundle is named after its model's file, and a pair has the names of its bundles."""
    files = [table.text(key) for key in ("bundle", "model") if table.has(key)]
    return table.text("paired_as") or (Path(files[0]).stem if files else name)


def _profile(table: TableReader, name: str, device: DeviceType, folder: Path) -> tuple[Row, ...]:
    """Rows in the file itself, or in a CSV file with the same columns."""
    if table.is_text("profile"):
        return csv_rows(folder / table.text("profile"), name, device)
    return tuple(stated_row(row, device) for row in table.tables("profile"))


def _count(count: int | None) -> int | None:
    """Checked here, since 0 means no count to a server."""
    if count is not None and not 1 <= count <= plans.MOST_DEVICES:
        raise BadRequest(f"count is {count}; it must be from 1 to {plans.MOST_DEVICES} devices")
    return count


def _interference(whole: TableReader) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for table in whole.tables("interference"):
        table.check_keys("model", "beside", "i")
        pair = table.text("model"), table.text("beside")
        if pair in found:
            raise BadRequest(f"{table.where}: '{pair[0]}' beside '{pair[1]}' appears twice; keep one")
        found[pair] = table.number("i", math.nan)
    return found
