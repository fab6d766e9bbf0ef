"""Ingests that a call waits for, and no job."""

from __future__ import annotations

import threading

from fractune_core.errors import FractuneError, error_from_name
from fractune_core.fleet.messages import WorkFailed
from fractune_server.store.models import IngestKey


class ModelIngests:
    """Ingests that a call waits for, not a job. Any thread may call."""

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
            if self._keys.pop(event["job"], None) is not None:
                self._errors[event["job"]] = error_from_name(event["error"], event["message"])

    def forget(self, job: str) -> FractuneError | None:
        """The call has ended, or asks how it stands: the error that came instead of operators, if one did."""
        with self._lock:
            return self._errors.pop(job, None)
