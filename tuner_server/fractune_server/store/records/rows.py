"""Rows of the `records` table to and from TuningRecord."""

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from sqlalchemy import JSON, Column, ColumnElement, Connection, RowMapping, Text, case, cast, or_, select

from fractune_core.codec.messages import END_OF_TIME_S, fits
from fractune_core.codec.plain_json import from_json, read_json
from fractune_core.errors import BadRequest
from fractune_core.operators import is_workload_hash, trace_of
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import COLD, UNTUNED, WARM, Kind, Status, TuningRecord, candidate_id
from fractune_core.shares import GrantedShare, Share
from fractune_core.targets import read_attributes
from fractune_server.store.database.database import as_dict
from fractune_server.store.database.sight import Sight, namespace_of
from fractune_server.store.database.tables import job_operators, jobs, records


@dataclass(frozen=True)
class RecordFilter:
    """Empty fields match everything, except the namespace."""

    model: str = ""
    """SHA-256 of a model, or part of a model's file name; case is ignored, as in all parts of names"""
    operator: str = ""
    """part of an operator's name, or a workload hash"""
    share: str = ""
    device: str = ""
    """part of a device key"""
    kind: Kind | None = None
    job: str = ""
    namespace: str = ""

    def clauses(self, sight: Sight, pools: Collection[str]) -> list[ColumnElement[bool]]:
        """`pools`: those that the tenants of the `sight` have for the namespace."""
        columns = records.c
        found_by_others = bool(self.model or self.share or self.job)
        found = [*sight.conditions(records), within(pools, by_index=not found_by_others)]
        if self.model:
            found.append(columns.workload_hash.in_(self._workloads_of_model(sight)))
        if self.operator:
            named = columns.operator.icontains(self.operator, autoescape=True)
            found.append(or_(columns.workload_hash == self.operator, named))
        if self.share:
            found.append(columns.share == self.share)
        if self.device:
            found.append(columns.device_key.icontains(self.device, autoescape=True))
        if self.kind is not None:
            found.append(columns.kind == self.kind.value)
        if self.job:
            found.append(columns.job == self.job)
        return found

    def _workloads_of_model(self, sight: Sight) -> ColumnElement[str]:
        named = jobs.c.model_name.icontains(self.model, autoescape=True)
        chosen = select(jobs.c.id).where(or_(jobs.c.model == self.model, named), *sight.conditions(jobs))
        return select(job_operators.c.workload_hash).where(job_operators.c.job.in_(chosen)).scalar_subquery()


def within(pools: Collection[str], *, by_index: bool) -> ColumnElement[bool]:
    """Whether a record is in one of the pools. Not `by_index`, if another index is more selective.

    The expression hides the column then: otherwise SQLite would choose an index that begins with the pool, and read all
    of it.
    """
    column = records.c.namespace if by_index else records.c.namespace.concat("")
    return column == next(iter(pools)) if len(pools) == 1 else column.in_(pools)


_LONGEST = 64
"""characters of what a record is found by"""
_LEAST_S, _MOST_S = 1e-12, 1e9
"""of a run: sums of such times, and operations divided by them, stay finite"""


def check_record(record: TuningRecord) -> None:
    """Raises BadRequest that names the record and what is wrong with it."""
    _raise_first(record, itertools.chain(_text_faults(record), _faults(record)))


def check_measured(record: TuningRecord) -> None:
    """The same for a record of the fleet's own workers, whose texts are taken as they are: traces are long."""
    _raise_first(record, _faults(record))


def _raise_first(record: TuningRecord, faults: Iterator[str]) -> None:
    try:
        ranges = [share for share in map(Share.parse, (record.share, record.granted.share)) if share.ends]
        fault = f"share '{ranges[0]}': no process is under a range" if ranges else next(faults, "")
    except BadRequest as error:
        fault = str(error)
    if fault:
        raise BadRequest(f"records/{record.record_id}: {fault}")


def _text_faults(record: TuningRecord) -> Iterator[str]:
    """One clause for each fault."""
    if not is_workload_hash(record.workload_hash):
        yield f"workload_hash '{record.workload_hash}' is not a workload hash, which is a SHA-256"
    if record.candidate_id != candidate_id(record.workload_hash, record.target_key, record.trace):
        yield "candidate_id does not belong to this workload, target and trace"
    if fault := _target_fault(record.target):
        yield fault
    if record.trace != UNTUNED and not _is_json(trace_of(record.trace)):
        yield "trace is not JSON"
    if not all(map(str.isprintable, _labels(record))):
        yield "one of its names has a character that is not printable"


def _labels(record: TuningRecord) -> tuple[str, ...]:
    """The texts that tables and files show of a record as they are, beside those that are checked by their form."""
    device = record.device
    names = (record.record_id, record.operator, record.job, record.worker, record.namespace)
    return (*names, device.kind, device.isa, device.label, record.granted.unit, record.policy.name)


def _faults(record: TuningRecord) -> Iterator[str]:
    """One clause for each fault that a reader of the log would stumble over."""
    if not record.device.kind or not record.device.isa or record.device.units < 1:
        yield "device lacks its kind, isa or units"
    namespace = namespace_of(record.namespace)
    names = (record.record_id, record.candidate_id, record.workload_hash, record.share, record.job, namespace)
    if any(len(name) > _LONGEST for name in names):
        yield f"one of its names is longer than {_LONGEST} characters"
    if not fits(record, pb.Record, measure_time=None):
        yield "one of its whole numbers has more than 32 bits"
    yield from _share_faults(record.granted)
    yield from _number_faults(record)


def _share_faults(granted: GrantedShare) -> Iterator[str]:
    if not 1 <= granted.units <= granted.units_total:
        yield f"granted share has {granted.units} of {granted.units_total} units"
    if not granted.unit:
        yield "granted share does not name its unit"


def _number_faults(record: TuningRecord) -> Iterator[str]:
    if (record.status is Status.OK) != bool(record.run_secs):
        yield f"status is '{record.status}' with {len(record.run_secs)} run times"
    cpu_secs = () if record.cpu_secs is None else (record.cpu_secs,)
    if not all(_LEAST_S <= secs <= _MOST_S for secs in (*record.run_secs, *cpu_secs)):
        yield f"run times must be from {_LEAST_S:g} to {_MOST_S:g} s, and so must cpu_secs where it is known"
    if not all(map(math.isfinite, (record.anchor_ratio, record.build_secs, record.policy.min_repeat_ms))):
        yield "anchor_ratio, build_secs and min_repeat_ms must be finite"
    if record.policy.cache not in {WARM, COLD}:
        yield f"its timing policy has a cache '{record.policy.cache}', neither {WARM} nor {COLD}"
    choosing, kept = record.policy.choosing, len(record.run_secs)
    if choosing < 0 or (kept and choosing >= kept):
        yield f"{choosing} of its {kept} run times choose; at least one must be left to report"
    if record.clock_mhz < 0 or any(ns < 0 for ns in record.throttled_ns.values()):
        yield "clock_mhz and throttled_ns must not be below 0"
    if record.attempts < 0:
        yield f"attempts is {record.attempts}; it must be 1 or more, or 0 where it is not known"
    if record.disturbance and not all(0 <= each < math.inf for each in record.disturbance.to_json().values()):
        yield "the numbers of disturbance must be 0 or more, and finite"
    if not 0 < record.measured_at < END_OF_TIME_S:
        yield "measure_time is missing, or none" if record.measured_at else "measure_time is missing"


def _target_fault(text: str) -> str:
    try:
        read_attributes(text)
    except BadRequest as error:
        return str(error)
    return ""


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


_PAGE = 500

_NAMES = (records.c.operator, records.c.job, records.c.worker)
"""columns that tell who measured, and for which model"""

_OWN = ("record_id", "run_secs", "cpu_secs", "anchor_ratio", "measured_at", "build_secs", "max_error", "disturbance")
"""fields that hardly ever are the same in two records"""


def record_to_row(record: TuningRecord, tenant: str, pool: str) -> dict[str, Any]:
    return {
        **record.to_json(),
        "tenant": tenant,
        "namespace": pool,
        "device_key": record.device.key,
        "share_key": record.granted.key,
        "ranking_median_s": record.choosing_s,
    }


def record_from_row(row: RowMapping) -> TuningRecord:
    return TuningRecord.from_json(as_dict(row))


class RecordReader:
    """Reads many records at once; what they have in common is parsed once and held once."""

    def __init__(self, reader: str = "") -> None:
        """With `reader`, a tenant, the records of other tenants have no names."""
        kinds = get_type_hints(TuningRecord)
        columns = [records.c[field.name] for field in fields(TuningRecord)]
        shown: list[ColumnElement[Any]] = [
            cast(each, Text) if isinstance(each.type, JSON) else each for each in columns
        ]
        if reader:
            hidden = {column.name: case((records.c.tenant == reader, column), else_="") for column in _NAMES}
            shown = [hidden.get(column.name, each) for column, each in zip(columns, shown, strict=True)]
        self._query = select(*shown)
        self._parsers = [_parser(column, kinds[column.name]) for column in columns]

    def read(self, connection: Connection, *clauses: ColumnElement[bool]) -> Iterator[TuningRecord]:
        """The records that pass all clauses."""
        found = connection.execution_options(yield_per=_PAGE).execute(self._query.where(*clauses))
        for row in found:
            yield TuningRecord(*(parse(value) for parse, value in zip(self._parsers, row, strict=True)))


def _parser(column: Column[Any], kind: Any) -> Callable[[Any], Any]:
    is_json = isinstance(column.type, JSON)

    def parse(value: Any) -> Any:
        return from_json(kind, json.loads(value) if is_json and value is not None else value)

    return parse if column.name in _OWN else _Once(parse).__getitem__


class _Once(dict[Any, Any]):
    """Results of a function by its argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, argument: Any) -> Any:
        result = self[argument] = self._function(argument)
        return result
