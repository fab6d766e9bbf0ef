"""Ingest: the model file becomes operators; what was found before is not looked for again."""

from __future__ import annotations

import threading

from fractune_core.blobs import has_blob, put_blob
from fractune_core.errors import BadModel, FractuneError, revive
from fractune_core.jobs import JobState, OperatorTask
from fractune_core.messages import COMPILE_QUEUE, Ingested, IngestWork, WorkFailed, workload_blob
from fractune_core.targets import with_cores
from fractune_server.engine.active_job import JobRun
from fractune_server.store.models import IngestedModel, IngestKey
from fractune_server.store.stored_job import StoredJob, StoredOperator
from fractune_server.transport.context import Deps
from fractune_server.transport.work_queues import WorkQueues


def ingest_key(job: StoredJob) -> IngestKey:
    return IngestKey(job.spec.model, job.spec.inputs, job.asked_target)


def request_ingest(deps: Deps, queues: WorkQueues, key: IngestKey, isa: str, job: str, work_id: str) -> None:
    """Hand out the work. Raises NotFound when the model or its file is not there."""
    model = deps.store.models.get(key.model)
    send_model(deps, key.model)
    work: IngestWork = {
        "do": "ingest",
        "work_id": work_id,
        "job": job,
        "model": key.model,
        "model_name": model.display_name,
        "inputs": key.inputs,
        "target": key.target,
        "isa": isa,
    }
    queues.enqueue(COMPILE_QUEUE, work)


def send_model(deps: Deps, sha256: str) -> None:
    """Put the model file where workers find it."""
    if not has_blob(deps.redis, sha256):
        put_blob(deps.redis, sha256, deps.files.model(sha256))


class LooseIngests:
    """Ingests that a call waits for, not a job. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, IngestKey] = {}
        self._errors: dict[str, FractuneError] = {}

    def expect(self, job: str, key: IngestKey) -> None:
        with self._lock:
            self._keys[job] = key

    def take(self, job: str) -> IngestKey | None:
        with self._lock:
            return self._keys.pop(job, None)

    def fail(self, event: WorkFailed) -> None:
        with self._lock:
            if self._keys.pop(event["job"], None) is not None:
                self._errors[event["job"]] = revive(event["error"], event["message"])

    def forget(self, job: str) -> FractuneError | None:
        """The call has ended, or asks how it stands: the error that came instead of operators, if one did."""
        with self._lock:
            return self._errors.pop(job, None)


class IngestPhase:
    def __init__(self, deps: Deps, queues: WorkQueues) -> None:
        self._deps = deps
        self._queues = queues

    def advance(self, run: JobRun) -> None:
        """Take the operators from an earlier ingest, or ask for one."""
        found = self._deps.store.models.find_ingested(ingest_key(run.job))
        if found is not None:
            self._take(run, found)
        elif "ingest" not in run.asked:
            if run.job.state is JobState.QUEUED:
                run.enter(JobState.INGESTING)
            work_id = f"{run.id}-ingest-{run.attempts['ingest']}"
            if not self._queues.has(work_id):
                isa = run.job.device.isa
                request_ingest(self._deps, self._queues, ingest_key(run.job), isa, run.id, work_id)
            run.attempts["ingest"] += 1
            run.asked.add("ingest")

    def save(self, key: IngestKey, event: Ingested) -> None:
        """Keep what an ingest has found; the next `advance` takes it from there."""
        tasks = [OperatorTask(item["workload_hash"], item["name"], item["weight"]) for item in event["operators"]]
        self._deps.store.log.add_workloads((item["workload_hash"], item["workload"]) for item in event["operators"])
        found = IngestedModel(event["target"], event["target_key"], tasks, event["notes"])
        self._deps.store.models.save_ingested(key, found)

    def _take(self, run: JobRun, found: IngestedModel) -> None:
        job = run.job
        job.target, job.target_key = with_cores(found.target, job.cores), found.target_key
        for note in found.notes:
            run.note(note)
        run.operators = [
            StoredOperator(task.workload_hash, task.name, task.weight, selected=job.spec.wants(task.name))
            for task in found.operators
        ]
        if not run.selected:
            names = ", ".join(task.name for task in found.operators)
            raise BadModel(f"no operator's name contains '{job.spec.only}'; {job.spec.model_name} has {names}")
        run.enter(JobState.TUNING)


def send_workload(deps: Deps, workload_hash: str) -> None:
    """Put a workload where workers find it."""
    name = workload_blob(workload_hash)
    if not has_blob(deps.redis, name):
        put_blob(deps.redis, name, deps.store.log.workload(workload_hash).encode())
