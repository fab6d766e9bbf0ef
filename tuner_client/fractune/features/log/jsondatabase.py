"""The tuning log as MetaSchedule's JSONDatabase: a folder that stock TVM reads and writes.

Such a folder has no shares, no devices and no wrong outputs. It takes published records of one share of one device.
Records from such a folder count as trials, and are checked before publication.
"""

import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fractune_core import operators
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadRequest, FractuneError, StateUnusable
from fractune_core.names import digest_of
from fractune_core.operators import DIRECT, NO_DECISIONS, TRITON, joined_workloads, parted_workloads, trace_of
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import UNTUNED, Kind, Status, TimingPolicy, TuningRecord, candidate_id
from fractune_core.shares import Device, GrantedShare
from fractune_core.targets import read_attributes, target_key
from fractune_core.tir.canonical import by_position, canonical_graph, names_of, read_graph

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
IMPORTED_POLICY = TimingPolicy("imported", warmups=0, repeats=1, min_repeat_ms=0.0)
"""the timing policy of a foreign database is not known"""


def check_tvm() -> None:
    """Raises FractuneError if TVM is not installed."""
    if importlib.util.find_spec("tvm") is None:
        raise FractuneError("a JSONDatabase needs TVM; install 'fractune[run]'")


def write_jsondatabase(parts: Iterable[pb.ExportRecordsResponse], path: Path) -> int:
    """Write the records with a schedule of TVM's to a JSONDatabase folder; return their number.

    Raises BadRequest for records of several shares or devices, StateUnusable if the folder cannot be written.
    """
    workloads: dict[str, str] = {}
    found: list[TuningRecord] = []
    for part in parts:
        if part.WhichOneof("part") == "workload":
            workloads[part.workload.workload_hash] = part.workload.json
            continue
        record = from_proto(TuningRecord, part.record)
        is_schedule = trace_of(record.trace) not in (UNTUNED, NO_DECISIONS) and record.implementation != TRITON
        if record.status is Status.OK and is_schedule:
            found.append(record)
    _check_one_place(found)
    newest = {record.candidate_id: record for record in found}  # they come oldest first
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}.") as draft:
            written = _commit(workloads, list(newest.values()), Path(draft))
            if written < len(newest):
                left = len(newest) - written
                print(f"note: stock TVM cannot apply {left} of {len(newest)} schedules; they stay out", file=sys.stderr)
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            for name in (WORKLOADS, RECORDS):
                (Path(draft) / name).rename(path / name)
    except OSError as error:
        raise StateUnusable(f"cannot write {path}: {error.strerror}") from error
    return written


def _check_one_place(records: Iterable[TuningRecord]) -> None:
    shares, devices = sorted({r.share for r in records}), sorted({r.device.key for r in records})
    if len(shares) > 1:
        raise BadRequest(f"a JSONDatabase holds one share, these records are of {', '.join(shares)}; pass --share")
    if len(devices) > 1:
        raise BadRequest(f"a JSONDatabase holds one device, these are of {', '.join(devices)}; pass --device")


def _commit(workloads: dict[str, str], records: Sequence[TuningRecord], folder: Path) -> int:
    """The number of records whose schedules stock TVM can apply, such as those without an instruction of ours."""
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    database = ms.database.JSONDatabase(work_dir=str(folder))
    for name in (WORKLOADS, RECORDS):
        (folder / name).touch()
    written = 0
    for record in records:
        by_implementation = parted_workloads(workloads[record.workload_hash])
        module = read_graph(by_implementation[record.implementation])
        args_info = [info.as_json() for info in ArgInfo.from_entry_func(module, remove_preproc=True)]
        target = json.loads(str(tvm.target.Target(read_attributes(record.target))))
        whole = [json.loads(trace_of(record.trace)), list(record.run_secs), target, _plain(args_info)]
        try:
            ms.database.TuningRecord.from_json(whole, ms.database.Workload(module))
        except (RuntimeError, ValueError):  # a ScheduleError, or an instruction that it does not have
            continue
        workload = database.commit_workload(module)
        database.commit_tuning_record(ms.database.TuningRecord.from_json(whole, workload))
        written += 1
    return written


def read_jsondatabase(path: Path, measured_on: pb.OfferedShare) -> Iterator[pb.ImportRecordsRequest]:
    """The workloads and records of a JSONDatabase folder, as measured at that share of that device.

    Raises BadRequest if the folder cannot be read.
    """
    from tvm.s_tir import meta_schedule as ms

    for name in (WORKLOADS, RECORDS):
        if not (path / name).is_file():
            raise BadRequest(f"{path} is not a JSONDatabase folder: it has no {name}")
    try:
        # TVM would create what is missing and lock nothing: it gets a copy.
        with tempfile.TemporaryDirectory() as copy:
            for name in (WORKLOADS, RECORDS):
                shutil.copy(path / name, copy)
            database = ms.database.JSONDatabase(work_dir=copy, allow_missing=False)
            found = list(database.get_all_tuning_records())
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadRequest(f"{path}: TVM cannot read this JSONDatabase ({reason}); nothing was imported") from error
    sent: set[str] = set()
    for entry in found:
        text = joined_workloads({DIRECT: canonical_graph(entry.workload.mod)})
        record = _imported(entry, operators.workload_hash(text), measured_on)
        if record.workload_hash not in sent:
            sent.add(record.workload_hash)
            yield pb.ImportRecordsRequest(workload=pb.Workload(workload_hash=record.workload_hash, json=text))
        yield pb.ImportRecordsRequest(record=to_proto(record, pb.Record))


def _imported(entry: Any, workload: str, measured_on: pb.OfferedShare) -> TuningRecord:
    import tvm

    if entry.target is None or entry.run_secs is None:
        raise BadRequest("a record of the JSONDatabase lacks its target or its run times; nothing was imported")
    target = str(entry.target)
    own = json.loads(json.dumps(entry.trace.as_json(), default=_plain))
    trace = json.dumps(by_position(own, names_of(entry.workload.mod)), separators=(",", ":"))
    candidate = candidate_id(workload, target_key(target), trace)
    granted = from_proto(GrantedShare, measured_on.granted)
    run_secs = tuple(float(_plain(secs)) for secs in entry.run_secs)
    failed = not run_secs or max(run_secs) >= 1e9  # MetaSchedule writes a huge time for a failure
    return TuningRecord(
        record_id=digest_of("imported", candidate, granted.key, run_secs),
        kind=Kind.TRIAL,
        candidate_id=candidate,
        workload_hash=workload,
        operator="imported",
        target=target,
        target_key=target_key(target),
        trace=trace,
        device=from_proto(Device, measured_on.device),
        share=granted.share,
        granted=granted,
        status=Status.RUN_FAILED if failed else Status.OK,
        cause="failed where it was measured" if failed else "",
        run_secs=() if failed else run_secs,
        policy=IMPORTED_POLICY,
        anchor_ratio=0.0,
        neighbours=0,
        job="",
        worker="",
        measured_at=time.time(),
        versions={"tvm": tvm.__version__},
    )


def _plain(value: Any) -> Any:
    """TVM's containers and numbers as Python's."""
    if isinstance(value, str | int | float) or value is None:
        return value
    return value.value if hasattr(value, "value") else [_plain(part) for part in value]
