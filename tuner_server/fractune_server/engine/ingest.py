"""Ingest: the model file becomes operators; what was found before is not looked for again."""

from __future__ import annotations

from fractune_core.errors import BadModel
from fractune_core.jobs import JobState, OperatorTask
from fractune_core.messages import Ingested
from fractune_core.targets import with_cores
from fractune_server.engine.active_job import ActiveJob
from fractune_server.store.models import IngestedModel, IngestKey
from fractune_server.store.stored_job import StoredJob, StoredOperator
from fractune_server.transport.context import ServerContext
from fractune_server.transport.outgoing import request_ingest
from fractune_server.transport.work_queues import WorkQueues


def ingest_key(job: StoredJob) -> IngestKey:
    return IngestKey(job.spec.model, job.spec.inputs, job.asked_target)


class IngestPhase:
    def __init__(self, context: ServerContext, queues: WorkQueues) -> None:
        self._context = context
        self._queues = queues

    def advance(self, run: ActiveJob) -> None:
        """Take the operators from an earlier ingest, or ask for one."""
        found = self._context.store.models.find_ingested(ingest_key(run.job))
        if found is not None:
            self._take(run, found)
        elif "ingest" not in run.asked:
            if run.job.state is JobState.QUEUED:
                run.enter(JobState.INGESTING)
            work_id = f"{run.id}-ingest-{run.attempts['ingest']}"
            if not self._queues.has(work_id):
                isa = run.job.device.isa
                request_ingest(self._context, self._queues, ingest_key(run.job), isa, run.id, work_id)
            run.attempts["ingest"] += 1
            run.asked.add("ingest")

    def save(self, key: IngestKey, event: Ingested) -> None:
        """Keep what an ingest has found; the next `advance` takes it from there."""
        tasks = [OperatorTask(item["workload_hash"], item["name"], item["weight"]) for item in event["operators"]]
        self._context.store.log.add_workloads((item["workload_hash"], item["workload"]) for item in event["operators"])
        found = IngestedModel(event["target"], event["target_key"], tasks, event["notes"])
        self._context.store.models.save_ingested(key, found)

    def _take(self, run: ActiveJob, found: IngestedModel) -> None:
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
