"""Objects that all parts of the server share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from redis import Redis

from fractune_core.errors import FractuneError, JobFailed, StateUnusable, error_from_name
from fractune_core.fleet.messages import WorkFailed
from fractune_core.fleet.options import MODEL_LIMIT_BYTES
from fractune_server.instruments import Instruments
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.models import IngestKey
from fractune_server.store.store import Store


def reported_error(event: WorkFailed) -> FractuneError:
    """The error that a worker reports. StateUnusable concerns the worker's disk; it must not end the server."""
    error = error_from_name(event.error, event.message)
    return JobFailed(str(error)) if isinstance(error, StateUnusable) else error


class JobNotifier:
    """Wakes the watchers of jobs. Any thread may call."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Number of changes. Read it before you look at jobs, so that you miss none."""
        return self._count

    def announce(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, since: int, timeout_s: float) -> None:
        """Wait for a change after `since`, or for the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: self._count > since, timeout_s)


class ModelIngests:
    """Ingests that a call waits for, and no job. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, IngestKey] = {}
        self._errors: dict[str, FractuneError] = {}

    def expect(self, job: str, key: IngestKey) -> None:
        with self._lock:
            self._keys[job] = key

    def models(self) -> set[str]:
        """SHA-256 of the models whose operators a call waits for."""
        with self._lock:
            return {key.model for key in self._keys.values()}

    def take(self, job: str) -> IngestKey | None:
        with self._lock:
            return self._keys.pop(job, None)

    def fail(self, event: WorkFailed) -> None:
        with self._lock:
            if self._keys.pop(event.job, None) is not None:
                self._errors[event.job] = reported_error(event)

    def refuse(self, job: str, error: FractuneError) -> None:
        """The operators arrived, and cannot be stored."""
        with self._lock:
            self._errors[job] = error

    def forget(self, job: str) -> FractuneError | None:
        """Take the error that arrived instead of operators, if there is one."""
        with self._lock:
            return self._errors.pop(job, None)


@dataclass(frozen=True)
class ServerContext:
    store: Store
    redis: Redis
    files: BlobStore
    secret: bytes
    """secret of the fleet; it signs bundles that travel through Redis"""
    upload_limit_bytes: int = MODEL_LIMIT_BYTES
    notifier: JobNotifier = field(default_factory=JobNotifier)
    model_ingests: ModelIngests = field(default_factory=ModelIngests)
    instruments: Instruments = field(default_factory=Instruments)
