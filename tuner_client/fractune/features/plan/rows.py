"""The speed of a model, from the plan file, a CSV file or a bundle."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from fractune.text.toml_table import TableReader
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.speeds import Row, measured_rows
from fractune_core.shares import Device

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


def bundle_rows(path: Path, device: DeviceType, batch: int) -> tuple[Row, ...]:
    """The times of a bundle on this device, of the fastest variant at each share; one run serves `batch` requests.

    Raises BadBundle for a bundle of another device, or one without times at such shares.
    """
    bundle = Bundle(path)
    bundle.check_undivided("plan")
    try:
        different = device.difference(Device.from_json(bundle.manifest["device"]))
        if different:
            raise BadBundle(f"{bundle.name}: made for {different}; give a bundle or a profile of the plan's device")
        operators_s: dict[int, float] = {}
        whole_s: dict[int, float] = {}
        for mechanism in (device.partitioning.value, "full"):
            fastest = {granted: min(times.values()) for granted, times in bundle.measured(mechanism).items()}
            for found, held in ((operators_s, fastest), (whole_s, bundle.timed(mechanism))):
                places = {device.units_of_granted(granted): secs for granted, secs in held.items()}
                found.update({units: secs for units, secs in places.items() if units is not None})
    finally:
        bundle.close()
    if not operators_s and not whole_s:
        raise BadBundle(
            f"{bundle.name}: has no time at a {device.partitioning} share of {device.name}; tune the model there"
        )
    return measured_rows(operators_s, whole_s, batch)


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
