"""A measurer's audit file: what it measured, on disk before the result is sent.

A measurer that keeps an audit file writes each measurement before it sends the result, and notes it again once Redis
has taken the result. A line is one JSON object. A line that a kill has cut short counts for nothing, because its result
was not sent. `scripts/chaos` compares the files with the log.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from fractune_core.errors import StateUnusable
from fractune_core.records import TuningRecord

AUDIT_VARIABLE = "FRACTUNE_AUDIT"
"""environment variable: the folder of the audit files; unset or empty = none are kept"""

MEASURED, DELIVERED = "measured", "delivered"
"""events of the lines"""


@dataclass(frozen=True)
class Statement:
    """One measurement, as its measurer tells it."""

    record_id: str
    kind: str
    candidate: str
    share: str
    job: str
    status: str
    run_secs: tuple[float, ...]
    """all repeats in seconds; empty for a failure"""
    measured_at: float
    """seconds since 1970, UTC"""

    @classmethod
    def of(cls, record: TuningRecord) -> Statement:
        return cls(
            record.record_id,
            record.kind.value,
            record.candidate_id,
            record.share,
            record.job,
            record.status.value,
            record.run_secs,
            record.measured_at,
        )

    def fits(self, record: TuningRecord) -> bool:
        """Whether the log's record says the same."""
        return self == Statement.of(record)


def measured_line(record: TuningRecord) -> str:
    """The line of a measurement that is about to be sent."""
    return json.dumps({"event": MEASURED, **asdict(Statement.of(record))})


def delivered_line(record_ids: Iterable[str], at: float) -> str:
    """The line of measurements that Redis has taken, at `at` seconds since 1970."""
    return json.dumps({"event": DELIVERED, "record_ids": list(record_ids), "at": at})


class AuditFile:
    """Lines are added and never changed. Raises StateUnusable."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.path = folder / f"{quote(worker, safe='')}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            self._end_a_torn_line()
            _sync_folder(folder)
        except OSError as error:
            raise self._unusable(error) from error

    def measured(self, records: Iterable[TuningRecord]) -> None:
        """Have it on disk that these were measured; to be called before they are sent."""
        self._add([measured_line(record) for record in records])

    def delivered(self, records: Iterable[TuningRecord]) -> None:
        """Note that Redis has taken these."""
        self._add([delivered_line((record.record_id for record in records), time.time())])

    def close(self) -> None:
        self._file.close()

    def _add(self, lines: Sequence[str]) -> None:
        try:
            rest = memoryview("".join(f"{line}\n" for line in lines).encode())
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unusable(error) from error

    def _end_a_torn_line(self) -> None:
        """A worker that was killed while it wrote may have had this name."""
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            torn = size and file.read(1) != b"\n"
        if torn:
            self._file.write(b"\n")

    def _unusable(self, error: OSError) -> StateUnusable:
        return StateUnusable(
            f"audit file {self.path}: {error.strerror}; free some space there, or name another folder by "
            f"{AUDIT_VARIABLE}"
        )


def audit_file(worker: str) -> AuditFile | None:
    """The file of this worker where FRACTUNE_AUDIT names a folder. Raises StateUnusable."""
    folder = os.environ.get(AUDIT_VARIABLE)
    return AuditFile(Path(folder).expanduser(), worker) if folder else None


def _sync_folder(folder: Path) -> None:
    """The file's name outlives a power cut too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
