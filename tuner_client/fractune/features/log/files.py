"""The tuning log as files: JSON lines, which can be imported again, and CSV for spreadsheets.

A JSON line is `{"workload": {"workload_hash", "json"}}` or `{"record": {...}}`; each workload comes before its first
record. CSV has one flat row for each record, without the trace.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from fractune.text.output_files import as_cell, replacing
from fractune_core.access import MOST_MESSAGE_BYTES
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.codec.plain_json import read_json
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord

_FIRST_COLUMNS = (
    "record_id",
    "kind",
    "operator",
    "workload_hash",
    "candidate_id",
    "target_key",
    "device",
    "device_label",
    "share",
    "granted_units",
    "units_total",
    "unit",
    "reserved",
    "status",
    "cause",
    "median_s",
    "spread",
    "run_secs",
    "policy",
    "cache",
    "choosing",
    "anchor_ratio",
    "neighbours",
    "build_secs",
    "max_error",
    "clock_mhz",
    "throttled_ns",
    "lost",
    "disturbance",
    "attempts",
    "job",
    "worker",
    "measured_at",
)
_LEFT_OUT = ("target", "trace", "granted", "versions", "namespace")
CSV_COLUMNS = (
    *_FIRST_COLUMNS,
    *(field.name for field in fields(TuningRecord) if field.name not in (*_FIRST_COLUMNS, *_LEFT_OUT)),
)
"""newer fields of the record come last"""
_CSV_START = ",".join(_FIRST_COLUMNS[:2])
_MOST_LINE_CHARACTERS = 8 * MOST_MESSAGE_BYTES
"""JSON needs up to six characters for one of a text"""


def write_jsonl(parts: Iterable[pb.ExportRecordsResponse], path: Path) -> int:
    """Write workloads and records as JSON lines; return the number of records."""
    count = 0
    with replacing(path) as file:
        for part in parts:
            if part.WhichOneof("part") == "workload":
                workload = {"workload_hash": part.workload.workload_hash, "json": part.workload.json}
                file.write(json.dumps({"workload": workload}) + "\n")
            else:
                file.write(json.dumps({"record": from_proto(TuningRecord, part.record).to_json()}) + "\n")
                count += 1
    return count


def write_csv(parts: Iterable[pb.ExportRecordsResponse], path: Path) -> int:
    """Write one flat row a record; return the number of records."""
    count = 0
    with replacing(path) as file:
        table = csv.DictWriter(file, CSV_COLUMNS)
        table.writeheader()
        for part in parts:
            if part.WhichOneof("part") == "record":
                row = csv_row(from_proto(TuningRecord, part.record))
                table.writerow({name: as_cell(value) for name, value in row.items()})
                count += 1
    return count


def csv_row(record: TuningRecord) -> dict[str, Any]:
    """The record as flat columns.

    `run_secs`, `throttled_ns` and `disturbance` are joined by semicolons; unknown values are empty.
    """
    disturbance = record.disturbance
    flat: dict[str, Any] = {name: getattr(record, name) for name in CSV_COLUMNS if hasattr(record, name)}
    flat |= {
        "kind": record.kind.value,
        "status": record.status.value,
        "device": record.device.key,
        "device_label": record.device.label,
        "granted_units": record.granted.units,
        "units_total": record.granted.units_total,
        "unit": record.granted.unit,
        "reserved": record.granted.reserved,
        "median_s": record.median_s if record.run_secs else "",
        "run_secs": ";".join(repr(secs) for secs in record.run_secs),
        "policy": record.policy.name,
        "cache": record.policy.cache,
        "choosing": record.policy.choosing,
        "throttled_ns": ";".join(f"{reason}={ns}" for reason, ns in sorted(record.throttled_ns.items())),
        "lost": "" if disturbance is None else disturbance.lost,
        "disturbance": ";".join(f"{name}={count}" for name, count in disturbance.to_json().items())
        if disturbance
        else "",
        "max_error": "" if record.max_error is None else record.max_error,
        "cpu_secs": "" if record.cpu_secs is None else record.cpu_secs,
    }
    return flat


def read_jsonl(path: Path) -> Iterator[pb.ImportRecordsRequest]:
    """The parts in a file of JSON lines. Raises BadRequest with the number of a wrong line."""
    try:
        with path.open(encoding="utf-8") as file:
            lines = iter(partial(file.readline, _MOST_LINE_CHARACTERS), "")
            for number, line in enumerate(lines, start=1):
                if number == 1 and line.startswith(_CSV_START):
                    raise BadRequest(f"{path} is a CSV, which cannot be imported; export with --format jsonl")
                if line.strip():
                    yield _small_part(f"{path}:{number}", line)
    except UnicodeDecodeError:
        raise BadRequest(f"{path}: not JSON lines of a fractune log (it is not text); nothing was imported") from None
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}") from error


def _small_part(where: str, line: str) -> pb.ImportRecordsRequest:
    """Raises BadRequest also for a line that is longer than a message to a server may be."""
    part = _parse_line(where, line) if len(line) < _MOST_LINE_CHARACTERS else None
    if part is None or part.ByteSize() > MOST_MESSAGE_BYTES:
        raise BadRequest(
            f"{where}: this line is longer than the {MOST_MESSAGE_BYTES >> 20} MiB that a server takes; remove it, or "
            "export the log again; nothing was imported"
        )
    return part


def _parse_line(where: str, line: str) -> pb.ImportRecordsRequest:
    try:
        data = read_json(line)
        if "workload" in data:
            workload = pb.Workload(workload_hash=data["workload"]["workload_hash"], json=data["workload"]["json"])
            return pb.ImportRecordsRequest(workload=workload)
        return pb.ImportRecordsRequest(record=to_proto(TuningRecord.from_json(data["record"]), pb.Record))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise BadRequest(
            f"{where}: not a line of a fractune log ({type(error).__name__}: {error}); nothing was imported"
        ) from error
