"""The tuning log of a server: query, export, import and prune its records.

Files are JSON lines, which can be imported again, or CSV for spreadsheets. A JSON line is
`{"workload": {"workload_hash", "json"}}` or `{"record": {...}}`; each workload comes before its first record. CSV has
one flat row for each record, without the trace.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from fractune.arguments import checked
from fractune.features.log import jsondatabase
from fractune.features.log.code import ScheduleCode, code_of
from fractune.features.log.table import records_table
from fractune.server.rpc import RpcClient, job_name
from fractune.text.output_files import as_cell, check_free, check_writable, replacing
from fractune.text.rendering import Table
from fractune_core.access import MOST_MESSAGE_BYTES
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.codec.plain_json import read_json
from fractune_core.errors import BadRequest, NotFound, ShareUnavailable
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Kind, TuningRecord
from fractune_core.shares import Share

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


_FOUND_AMONG = 1000
RecordFormat: TypeAlias = Literal["csv", "jsonl", "jsondatabase"]


@dataclass(frozen=True)
class Records(Sequence[TuningRecord]):
    """Records of the log, in the requested order."""

    records: tuple[TuningRecord, ...]
    total: int
    """number of records that pass the filter; `records` may be fewer"""
    arithmetic: Mapping[str, Arithmetic] = field(default_factory=dict)
    """known arithmetic of their operators, by workload hash"""
    roofs: Mapping[str, Roof] = field(default_factory=dict)
    """known roofs of their shares, by record id"""
    next_page: str = ""
    """for `Log.query(page=...)`: where the records after these begin; empty if there are none"""

    def __repr__(self) -> str:
        return f"Records({len(self)} of {self.total})"

    @overload
    def __getitem__(self, index: int) -> TuningRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TuningRecord]: ...
    def __getitem__(self, index: int | slice) -> TuningRecord | Sequence[TuningRecord]:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[TuningRecord]:
        return iter(self.records)

    @property
    def table(self) -> Table:
        """A row for each record."""
        return records_table(self.records, self.arithmetic, self.roofs)

    def to_pandas(self) -> Any:
        """Whole records, a row each, as a `pandas.DataFrame`. Raises FractuneError without pandas."""
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """Whole records, a row each, as a `polars.DataFrame`. Raises FractuneError without Polars."""
        return self.table.to_polars()


@dataclass(frozen=True)
class Imported:
    """Outcome of an import."""

    added: int
    already_there: int


@dataclass(frozen=True)
class Pruned:
    """Outcome of pruning."""

    deleted: int
    kept: int


@dataclass(frozen=True)
class UnreadableResult:
    """An unreadable result of a worker, which the server keeps."""

    set_aside_at: datetime
    place: str
    """the stream that held it, and its id there"""
    reason: str
    event: str
    """as the worker wrote it"""


class FilterOptions(TypedDict, total=False):
    """Filters of records, described at `Log`."""

    model: str
    operator: str
    share: str
    device: str
    kind: str
    job: str
    namespace: str


class Log:
    """The tuning log, as `Client.log`.

    Filters: `model` is part of a model's file name, or `models/SHA256`. `operator` is part of an operator's name, or a
    workload hash. `share` is the requested one (`cpu:1`), `device` part of a device key. `kind` is `trial` or
    `validation`, `job` a job's name. Empty filters accept everything, except `namespace`: an empty one is the server's
    own. Raises BadRequest for an impossible share or kind.
    """

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc

    @checked
    def query(
        self, *, limit: int = 100, fastest: bool = False, page: str = "", **filters: Unpack[FilterOptions]
    ) -> Records:
        """At most `limit` records, the newest first, or the fastest; with `page` those after an earlier answer's."""
        only = record_filter(**filters)
        found = self._rpc.records(only, limit, fastest_first=fastest, page=page)
        return Records(
            tuple(map(partial(from_proto, TuningRecord), found.records)),
            found.total_size,
            {name: from_proto(Arithmetic, each) for name, each in found.arithmetic.items()},
            {Collection.RECORDS.parse(name): from_proto(Roof, each) for name, each in found.roofs.items()},
            found.next_page_token,
        )

    @checked
    def record(
        self, record_id: str, *, fastest: bool = False, page: str = "", **filters: Unpack[FilterOptions]
    ) -> TuningRecord:
        """A record by its id. It must be among the first 1000 that pass the filters, in the order of `query`.

        Raises NotFound for any other.
        """
        found = self.query(limit=_FOUND_AMONG, fastest=fastest, page=page, **filters)
        record = next((each for each in found if each.record_id == record_id), None)
        if record is None:
            first = f"first {_FOUND_AMONG} of the " if found.total > _FOUND_AMONG else ""
            remedy = "name its job and operator" if first else "'fractune log show --json' has the ids"
            raise NotFound(
                f"record '{record_id}' is not among the {first}{found.total} that pass the filters; {remedy}"
            )
        return record

    def code(self, record: TuningRecord) -> ScheduleCode:
        """The scheduled TIR of a record and, for a CPU, its assembly. It takes seconds, and needs `fractune[local]`.

        Raises FractuneError for the record of a failure, if the schedule cannot be built here, and without TVM.
        """
        return code_of(self._rpc, record)

    @checked
    def export(
        self,
        path: str | os.PathLike[str],
        *,
        file_format: RecordFormat = "jsonl",
        force: bool = False,
        **filters: Unpack[FilterOptions],
    ) -> int:
        """Write all records that pass to `path`, and return their number.

        `jsonl` can be imported again; `csv` has one flat row for each record. `jsondatabase` is a folder for stock TVM,
        of one share of one device, by default with validations only (`kind`). Raises BadRequest if `path` exists and
        `force` is False, StateUnusable if it cannot be written, FractuneError if a folder needs a missing TVM.
        """
        only = record_filter(**filters)
        check_export(Path(path), file_format, force=force)
        if file_format == "jsondatabase":
            only.kind = only.kind or Kind.VALIDATION.value  # trials were never checked for right output
        parts = self._rpc.export_records(only, with_workloads=file_format != "csv")
        write = {"csv": write_csv, "jsonl": write_jsonl, "jsondatabase": jsondatabase.write_jsondatabase}[file_format]
        return write(parts, Path(path))

    @checked
    def unreadable(self, *, limit: int = 100) -> tuple[list[UnreadableResult], int]:
        """The newest unreadable results, at most `limit`, and the number of all.

        They are torn, or come from a worker of another version. The log has nothing of them.
        """
        found = self._rpc.unreadable(limit)
        results = [
            UnreadableResult(each.set_aside_time.ToDatetime(UTC), each.place, each.reason, each.event)
            for each in found.results
        ]
        return results, found.total_size

    def replay_unreadable(self) -> int:
        """Have the server read all of them again, and return their number. It keeps those that are still unreadable."""
        return self._rpc.replay_unreadable()

    @checked
    def import_file(self, path: str | os.PathLike[str], *, share: str = "") -> Imported:
        """Import a file of JSON lines or a JSONDatabase folder, all records or none of each 16 MiB.

        Such a folder does not state its share: `share` does, and a live measurer of that share states the device.
        Raises BadRequest for an unreadable file or folder, ShareUnavailable.
        """
        path = Path(path)
        answer = self._rpc.import_records(self._folder_parts(path, share) if path.is_dir() else list(read_jsonl(path)))
        return Imported(answer.added, answer.already_there)

    @checked
    def prune(self, *, keep_best: int = 64, dry_run: bool = False, **filters: Unpack[FilterOptions]) -> Pruned:
        """Delete trials beyond the fastest `keep_best` of each operator, target, device and share.

        Published records stay unless `kind` is `validation`. With `dry_run` they are only counted.
        """
        only = record_filter(**filters)
        answer = self._rpc.prune_records(only, keep_best, dry_run=dry_run)
        return Pruned(answer.deleted, answer.kept)

    def _folder_parts(self, path: Path, share: str) -> list[pb.ImportRecordsRequest]:
        if not share:
            raise BadRequest(f"{path} is a JSONDatabase folder, which does not state its share; pass share")
        jsondatabase.check_tvm()
        requested = str(Share.parse(share))
        offered = next((each for each in self._rpc.shares() if each.granted.share == requested), None)
        if offered is None:
            raise ShareUnavailable(f"no measurer offers {requested}, so its device is not known; start one")
        return list(jsondatabase.read_jsondatabase(path, offered))


def record_filter(**filters: Unpack[FilterOptions]) -> pb.RecordFilter:
    """Raises BadRequest for an impossible share or kind."""
    if filters.get("share"):
        Share.parse(filters["share"])
    if filters.get("kind", "") not in ("", *Kind):
        raise BadRequest(f"kind '{filters['kind']}': write {' or '.join(Kind)}")
    if filters.get("job"):
        filters["job"] = job_name(filters["job"])
    return pb.RecordFilter(**filters)


def check_export(path: Path, file_format: RecordFormat, *, force: bool) -> None:
    """Raises BadRequest or FractuneError before the work for a failure of `Log.export`."""
    check_free(path, force=force)
    if file_format == "jsondatabase":
        jsondatabase.check_tvm()
        check_writable("PATH", path / jsondatabase.RECORDS)
    else:
        check_writable("PATH", path)
