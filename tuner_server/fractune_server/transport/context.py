"""Objects that all parts of the server share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from redis import Redis

from fractune_core.errors import FractuneError, JobFailed, NotFound, StateUnusable, error_from_name
from fractune_core.files.model_files import Interface
from fractune_core.fleet.messages import WorkFailed
from fractune_core.fleet.options import MODEL_LIMIT_BYTES
from fractune_server.instruments import Instruments
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.database.sight import Sight
from fractune_server.store.store import IngestKey, ModelStore, Store, View


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

    def awaited(self) -> list[IngestKey]:
        """What calls wait for."""
        with self._lock:
            return list(self._keys.values())

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


class TenantFiles:
    """Files of models and bundles, as far as a view goes. Others raise NotFound, as those that do not exist."""

    def __init__(self, files: BlobStore, models: ModelStore) -> None:
        self._files = files
        self._models = models
        self.parts = files.parts
        self.add_model = files.add_model

    def model(self, sha256: str) -> Iterator[bytes]:
        self._models.get(sha256)
        return self._files.model(sha256)

    def interface(self, sha256: str) -> Interface:
        """As that of BlobStore."""
        self._models.get(sha256)
        return self._files.interface(sha256)

    def check_inputs(self, sha256: str) -> None:
        """As that of BlobStore."""
        self._models.get(sha256)
        self._files.check_inputs(sha256)

    def bundle(self, bundle: str) -> Iterator[bytes]:
        self._models.check_bundle(bundle)
        return self._files.bundle(bundle)


class TenantView(View):
    """What a caller can reach: rows and files, of one tenant or of all."""

    def __init__(self, store: Store, files: BlobStore, sight: Sight) -> None:
        super().__init__(store.of(sight), store.log)
        self.files = TenantFiles(files, self.models)
        self._whole = store, files

    def of_tenant(self, tenant: str) -> TenantView:
        """The part that one tenant sees. Raises NotFound for a tenant that is not seen."""
        if self.sight.seen not in (None, tenant):
            raise NotFound(f"no tenant '{tenant}'")
        return TenantView(*self._whole, Sight(tenant, tenant))

    @property
    def own(self) -> TenantView:
        """The part that the caller's own tenant sees."""
        return self if self.sight.seen == self.sight.own else self.of_tenant(self.sight.own)


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

    def view(self, sight: Sight) -> TenantView:
        return TenantView(self.store, self.files, sight)

    def sees_fleet(self, tenant_seen: str | None) -> bool:
        """Whether one who sees this tenant (None = all) sees all that the fleet does."""
        return tenant_seen is None or not self.store.tenants.all()

    def view_of(self, tenant: str) -> TenantView:
        """What one tenant sees."""
        return self.view(Sight(tenant, tenant))


@dataclass(frozen=True)
class CallContext:
    """What answers of calls are made of. Nothing in it leads to the rows and files of all tenants but `view`."""

    view: Callable[[], TenantView]
    """what the caller of the call that this thread answers can reach"""
    sees_fleet: Callable[[], bool]
    """whether that caller may know what the fleet does at the moment, which it does for all tenants"""
    redis: Redis
    secret: bytes
    upload_limit_bytes: int
    notifier: JobNotifier
    model_ingests: ModelIngests
