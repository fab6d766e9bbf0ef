"""A pack is measured at shares of this machine, without TVM's compiler, Redis or a server.

1. Each share is proved.
2. Each candidate's output is compared with that of the untuned default. Then the candidate is raced alone, as the
   trials of a job. A few candidates of every operator are raced at every share, then the next few: the end of the time
   cuts all operators alike.
3. The best four of each share are validated at all shares, as the finalists of a job.

The times are written after every batch, as lines of a log (`fractune log export`), and a second call goes on from them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from fractune_core.codec.plain_json import checked, read_json
from fractune_core.errors import BadRequest, ShareUnavailable, StateUnusable
from fractune_core.files.packs import ANCHOR, LOOP, Pack, PackedOperator
from fractune_core.files.sealed import MANIFEST
from fractune_core.fleet.messages import MeasureWork, TargetOperator, WorkRound
from fractune_core.host.cpus import CpuTopology
from fractune_core.names import DEFAULT_TENANT, digest_of
from fractune_core.records import ArtifactItem, Kind, Status, TuningRecord
from fractune_core.shares import Device, Share
from fractune_workers.gpu.nvml import UNKNOWN_CLOCKS, GpuClock
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.locks.gpu_slots import ALONE, GpuSlots, MeasurementSlot
from fractune_workers.measuring.session import (
    ArtifactBatch,
    MeasurementSession,
    Outcome,
    TimeOver,
    measure_stable,
    measured_record,
)
from fractune_workers.measuring.validation import failures, validation

Progress = Callable[[str], None]
_Slot = TypeVar("_Slot")

_TOGETHER = 8
"""candidates of an operator that are raced at a share before those of the next"""
_FINALISTS = 4
"""of each share"""
_TRIALS_PART = 2 / 3
"""of the time; the rest is for the finalists"""
_MOST_LINE_BYTES = 64 << 20
_LINES_BEGIN = (b'{"workload": {"', b'{"record": {"')


@dataclass(frozen=True)
class _Key:
    """What a record is of."""

    kind: Kind
    candidate: str
    share: str

    @classmethod
    def of(cls, record: TuningRecord) -> _Key:
        return cls(record.kind, record.candidate_id, record.share)


class TimesFile:
    """The file of times. An earlier measurement of the same pack in it goes on. Raises BadRequest for another file,
    StateUnusable for one that cannot be written or that another process writes.
    """

    def __init__(self, path: Path, pack: Pack, operators: Mapping[str, PackedOperator]) -> None:
        self._path = path
        self._operators = operators
        self.records: dict[_Key, TuningRecord] = {}
        self._has_workload: set[str] = set()
        try:
            if path.exists() and not path.is_file():
                raise StateUnusable(f"{path} is not a regular file; name another file with --out")
            self._file: IO[bytes] = path.open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateUnusable(
                f"{path}: cannot be written, or another 'fractune measure' writes it ({error})"
            ) from error
        try:
            end = self._read()
            self.job = self._own_job(f"pack-{pack.digest[:16]}-")
            self._cut(end)
        except BaseException:
            self.close()
            raise

    def _own_job(self, begins: str) -> str:
        """Raises BadRequest unless all that was read is of this pack."""
        jobs = {record.job for record in self.records.values()}
        is_own = self._has_workload <= self._operators.keys() and all(job.startswith(begins) for job in jobs)
        if len(jobs) > 1 or not is_own:
            raise BadRequest(f"{self._path} has times of another pack or log; name another file with --out")
        return jobs.pop() if jobs else f"{begins}{uuid.uuid4().hex[:8]}"

    def _read(self) -> int:
        """Read the lines, and return the bytes of all but one that a kill has left unfinished. A last line that only
        lacks its end is whole.
        """
        self._file.seek(0)
        end = 0
        while line := self._file.readline(_MOST_LINE_BYTES):
            if not line.endswith(b"\n") and not _is_json(line):
                self._check_torn(line)
                break
            end += len(line)
            self._take(line)
        return end

    def _cut(self, end: int) -> None:
        """Remove what is behind the whole lines, and end the last one. Raises StateUnusable."""
        try:
            self._file.truncate(end)
            self._file.seek(max(0, end - 1))
            if self._file.read(1) not in (b"", b"\n"):
                self._file.write(b"\n")
        except OSError as error:
            raise StateUnusable(f"{self._path}: {error.strerror}; name another file with --out") from error

    def _check_torn(self, line: bytes) -> None:
        """Raises BadRequest unless the end of the file is the beginning of a line of times."""
        is_ours = any(line[: len(each)] == each[: len(line)] for each in _LINES_BEGIN)
        if not is_ours or len(line) == _MOST_LINE_BYTES:
            raise BadRequest(f"{self._path} is not a file of times (its last line); name another file with --out")

    def _take(self, line: bytes) -> None:
        try:
            data = read_json(line)
            if "workload" in data:
                self._has_workload.add(str(data["workload"]["workload_hash"]))
                return
            record = checked(TuningRecord, data["record"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"{self._path} is not a file of times ({error}); name another file with --out") from error
        self.records[_Key.of(record)] = record

    def add(self, records: Iterable[TuningRecord]) -> None:
        """Have the records on disk."""
        lines = []
        for record in records:
            name = record.workload_hash
            if name not in self._has_workload:
                self._has_workload.add(name)
                lines.append({"workload": {"workload_hash": name, "json": self._operators[name].workload}})
            lines.append({"record": record.to_json()})
            self.records[_Key.of(record)] = record
        try:
            self._file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StateUnusable(f"{self._path}: {error.strerror}; free some space and call it again") from error

    def check_device(self, device: Device) -> None:
        """Raises BadRequest if the times that are there were measured on another device."""
        others = {record.device.key for record in self.records.values()} - {device.key}
        if others:
            raise BadRequest(
                f"{self._path} has times of the device {min(others)}, and this one is {device.key}; name another file "
                "with --out"
            )

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what `add` could not write, and has reported
            self._file.close()


@contextlib.contextmanager
def held_in_time(slot: AbstractContextManager[_Slot], end_s: float) -> Iterator[_Slot]:
    """Hold the slot, for which other measurements may have to be awaited until `end_s` (monotonic). Raises TimeOver.

    A lock of the kernel is awaited without a limit, so another thread waits. If it gets the slot too late, it leaves it
    at once.
    """
    entered, left = Future[_Slot](), threading.Event()

    def hold() -> None:
        try:
            with slot as held:
                entered.set_result(held)
                left.wait()
        except OSError as error:
            entered.set_exception(error)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        yield _in_time(entered, end_s)
    finally:
        left.set()
    thread.join()


def _in_time(entered: Future[_Slot], end_s: float) -> _Slot:
    try:
        return entered.result(None if end_s == math.inf else max(0.0, end_s - time.monotonic()))
    except TimeoutError as error:
        raise TimeOver("the time for measuring is over") from error


def _is_json(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        read_json(line)
        return True
    return False


@dataclass(frozen=True)
class _Place:
    """A share that was proved."""

    share: str
    session: MeasurementSession
    slot: Callable[[], AbstractContextManager[MeasurementSlot]]
    clocks: Callable[[], Any]


def measure_pack(
    pack: Pack, out: Path, shares: Sequence[Share], minutes: float | None, progress: Progress
) -> dict[str, Any]:
    """Measure the pack, and return numbers of the file as plain JSON values. Raises BadBundle, BadRequest,
    ShareUnavailable if a share cannot be proved, StateUnusable.
    """
    began_s = time.monotonic()
    _check_kind(pack, shares)
    time_s = math.inf if minutes is None else 60.0 * minutes
    operators = {each.workload_hash: each for each in pack.operators()}
    with contextlib.ExitStack() as held:
        times = held.enter_context(contextlib.closing(TimesFile(out, pack, operators)))
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="fractune-pack-")))
        unpack(pack, folder)
        places = [_proved(share, folder, held, progress) for share in shares]
        times.check_device(Device.from_json(places[0].session.device_info["device"]))
        run = _Run(pack, list(operators.values()), places, times, progress)
        is_complete = run.all_trials(began_s + _TRIALS_PART * time_s) & run.all_validations(began_s + time_s)
    found = times.records.values()
    return {
        "event": "measured",
        "path": str(out),
        "job": times.job,
        "shares": [place.share for place in places],
        "trials": sum(record.kind is Kind.TRIAL for record in found),
        "validations": sum(record.kind is Kind.VALIDATION for record in found),
        "failed": sum(record.status is not Status.OK for record in found),
        "complete": is_complete,
        "wall_s": time.monotonic() - began_s,
    }


def _check_kind(pack: Pack, shares: Sequence[Share]) -> None:
    """Raises BadRequest where the pack is for a GPU and a share is of a CPU, or the reverse."""
    own, example = ("GPU", "full or mps:25") if pack.device_kind == "cuda" else ("CPU", "cpu:1")
    for share in shares:
        if share.device_kind != pack.device_kind:
            raise BadRequest(f"{pack.name} is for a {own}: name shares such as {example}, not '{share}'")


def unpack(pack: Pack, folder: Path) -> None:
    """Write what the measuring children need of the pack."""
    (folder / MANIFEST).write_bytes(json.dumps(pack.manifest.to_json()).encode())
    for name in (ANCHOR, LOOP):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pack.host_kernel(name))


def batch_of(pack: Pack, operator: PackedOperator, candidates: Iterable[ArtifactItem]) -> ArtifactBatch:
    """Those of the operator's candidates that could be built. Raises BadBundle."""
    built = {each.candidate: each.trace for each in candidates if each.status is Status.OK}
    codes = {name: pack.code(name) for name in built}
    return ArtifactBatch.of(operator.workload_hash, operator.args_info, codes, built)


def _proved(share: Share, folder: Path, held: contextlib.ExitStack, progress: Progress) -> _Place:
    """Raises ShareUnavailable."""
    share.check_measures_kernels()
    available = sorted(os.sched_getaffinity(0))
    if share.host_cores > len(available):
        raise ShareUnavailable(f"share '{share}' is larger than the {len(available)} cores of this process")
    cores = CpuTopology.read().choose(available, share.host_cores)
    locks = CoreLocks(default_lock_dir())
    session = MeasurementSession(share, cores, lock_dir=locks.directory, packed=folder)
    held.callback(session.stop)
    session.handshake()
    granted = session.device_info["granted"]
    progress(f"{share}: proved, {granted['units']} of {granted['units_total']}")
    if session.gpu_uuid is None:
        return _Place(str(share), session, partial(locks.measuring, cores), lambda: UNKNOWN_CLOCKS)
    slots = GpuSlots(locks.directory, session.gpu_uuid)
    return _Place(str(share), session, partial(locks.measuring_on, slots, ALONE, cores), GpuClock().read)


class _Run:
    """One measurement of a pack."""

    def __init__(
        self,
        pack: Pack,
        operators: Sequence[PackedOperator],
        places: Sequence[_Place],
        times: TimesFile,
        progress: Progress,
    ) -> None:
        self._pack = pack
        self._operators = operators
        self._places = places
        self._times = times
        self._progress = progress
        self._worker = f"{socket.gethostname()}: pack {pack.digest}"

    def all_trials(self, end_s: float) -> bool:
        """Race all candidates at all shares until `end_s`; whether all were raced."""
        most = max(len(operator.candidates) for operator in self._operators)
        return self._until(
            end_s,
            (
                partial(self._trials, place, operator, operator.candidates[start : start + _TOGETHER])
                for start in range(1, most, _TOGETHER)
                for operator in self._operators
                for place in self._places
            ),
        )

    def all_validations(self, end_s: float) -> bool:
        """Validate the finalists of all operators at all shares until `end_s`, those with the longest time in a run of
        the model first; whether all were validated.
        """
        best_s = {each.workload_hash: self._best_s(each) for each in self._operators}
        ordered = sorted(self._operators, key=lambda each: each.weight * best_s[each.workload_hash], reverse=True)
        return self._until(
            end_s, (partial(self._validation, place, operator) for operator in ordered for place in self._places)
        )

    def _until(self, end_s: float, batches: Iterator[Callable[[], None]]) -> bool:
        for place in self._places:
            place.session.end_s = end_s
        try:
            for batch in batches:
                if time.monotonic() >= end_s:
                    return False
                batch()
        except TimeOver:
            return False
        return True

    def _trials(self, place: _Place, operator: PackedOperator, candidates: Sequence[ArtifactItem]) -> None:
        untuned = operator.candidates[0]
        todo = self._missing(Kind.TRIAL, place, candidates)
        batch = batch_of(self._pack, operator, [untuned, *todo])

        def measure() -> Mapping[str, Outcome]:
            wrong = failures(place.session, batch, untuned.candidate)
            right = [name for name in batch.codes if name not in wrong and name != untuned.candidate]
            found = place.session.trials(batch, self._fastest_s(place, operator), right)
            return {name: outcome for name, outcome in (wrong | found).items() if name != untuned.candidate}

        if todo:
            self._measure(Kind.TRIAL, place, operator, todo, batch, measure)

    def _validation(self, place: _Place, operator: PackedOperator) -> None:
        untuned = operator.candidates[0]
        finalists = [untuned, *self._finalists(operator)]
        # They are timed together, or not at all.
        if len(finalists) > 1 and self._missing(Kind.VALIDATION, place, finalists):
            batch = batch_of(self._pack, operator, finalists)
            measure = validation(place.session, batch, untuned.candidate)
            self._measure(Kind.VALIDATION, place, operator, finalists, batch, measure)

    def _finalists(self, operator: PackedOperator) -> list[ArtifactItem]:
        """The best few of each share."""
        found: dict[str, None] = {}
        for place in self._places:
            raced = self._raced(place, operator)
            found |= dict.fromkeys(sorted(raced, key=raced.__getitem__)[:_FINALISTS])
        return [each for each in operator.candidates if each.candidate in found]

    def _raced(self, place: _Place, operator: PackedOperator) -> dict[str, float]:
        """Median seconds of the operator's trials at a share, by candidate."""
        keys = (_Key(Kind.TRIAL, each.candidate, place.share) for each in operator.candidates)
        records = (self._times.records.get(key) for key in keys)
        return {each.candidate_id: each.median_s for each in records if each is not None and each.status is Status.OK}

    def _fastest_s(self, place: _Place, operator: PackedOperator) -> float:
        return min(self._raced(place, operator).values(), default=math.inf)

    def _best_s(self, operator: PackedOperator) -> float:
        """At any share; 0 where nothing ran."""
        best_s = min(self._fastest_s(place, operator) for place in self._places)
        return 0.0 if best_s == math.inf else best_s

    def _missing(self, kind: Kind, place: _Place, candidates: Iterable[ArtifactItem]) -> list[ArtifactItem]:
        return [each for each in candidates if _Key(kind, each.candidate, place.share) not in self._times.records]

    def _measure(
        self,
        kind: Kind,
        place: _Place,
        operator: PackedOperator,
        candidates: Sequence[ArtifactItem],
        batch: ArtifactBatch,
        measure: Callable[[], Mapping[str, Outcome]],
    ) -> None:
        with held_in_time(place.slot(), place.session.end_s) as slot:
            outcomes, conditions = measure_stable(place.session, place.clocks, measure)
        work = self._work(kind, place, operator, batch)
        self._times.add(
            measured_record(
                place.session,
                work,
                each,
                outcomes.get(each.candidate),
                conditions,
                slot.co_runners,
                self._worker,
            )
            for each in candidates
        )
        best_s = min((each.median_s for each in outcomes.values()), default=math.inf)
        fastest = "" if best_s == math.inf else f", the fastest {best_s * 1e6:.1f} us"
        self._progress(f"{place.share}: {kind.value} of {len(candidates)} candidates of {operator.name}{fastest}")

    def _work(self, kind: Kind, place: _Place, operator: PackedOperator, batch: ArtifactBatch) -> MeasureWork:
        """The work by which a server would have had this measured."""
        manifest, job = self._pack.manifest, self._times.job
        of = TargetOperator(operator.workload_hash, operator.name, manifest.target, manifest.target_key)
        return MeasureWork(
            work_id="",
            job=job,
            tenant=DEFAULT_TENANT,
            round=WorkRound(digest_of(job, kind.value), "", of),
            purpose=kind,
            share=place.share,
            args_info=batch.args_info,
            candidates=[],
            reply="",
        )
