"""The tuning log of a server: query, export, import and prune its records."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from fractune.arguments import checked
from fractune.features.log import jsondatabase
from fractune.features.log.code import ScheduleCode, code_of
from fractune.features.log.files import read_jsonl, write_csv, write_jsonl
from fractune.features.log.table import records_table
from fractune.server.rpc import RpcClient, job_name
from fractune.text.output_files import check_free, check_writable
from fractune.text.rendering import Table
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.codec.messages import from_proto
from fractune_core.errors import BadRequest, NotFound, ShareUnavailable
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Kind, TuningRecord
from fractune_core.shares import Share

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
