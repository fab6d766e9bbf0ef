"""Ingest: a worker turns the model file into operators, once for each model, shapes and target.

The compile workers have one queue, which no owner fills: another's model waits for few pieces of work (`CompileTurns`).
"""

from collections import Counter
from collections.abc import Collection, Iterable

from fractune_core.analysis.roofline import Arithmetic
from fractune_core.errors import BadModel, some_of
from fractune_core.fleet.messages import Ingested
from fractune_core.jobs import JobState, OperatorTask
from fractune_core.targets import with_cores
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.store.jobs import StoredJob, StoredOperator
from fractune_server.store.store import IngestedModel, IngestKey
from fractune_server.transport.context import ServerContext
from fractune_server.transport.work_queues import WorkQueues, request_ingest

_PIECES_A_WORKER = 2
"""one that runs, and one that waits, so that no worker has to wait for the server"""
_TASKS = ("ingest", "compile")


class CompileTurns:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self) -> None:
        self._most = _PIECES_A_WORKER
        self._held: Counter[str] = Counter()
        """pieces in the queue, by owner"""

    def note_workers(self, count: int) -> None:
        """There are so many compile workers."""
        self._most = _PIECES_A_WORKER * max(1, count)

    def recount(self, jobs: Iterable[ActiveJob]) -> None:
        """Count the pieces that the open jobs have requested."""
        self._held = Counter(job.stored.owner for job in jobs for work in job.requested if work.task in _TASKS)

    def is_free(self, job: ActiveJob) -> bool:
        """Whether the job's owner may have another piece in the queue."""
        return self._held[job.stored.owner] < self._most

    def take(self, job: ActiveJob) -> None:
        self._held[job.stored.owner] += 1


_INGEST = SingleWork("ingest")


def ingest_key(job: StoredJob) -> IngestKey:
    return IngestKey(job.spec.model, job.spec.inputs, job.asked_target, job.tenant)


class IngestPhase:
    def __init__(self, context: ServerContext, queues: WorkQueues, turns: CompileTurns) -> None:
        self._context = context
        self._queues = queues
        self._turns = turns

    def advance(self, job: ActiveJob, jobs: Collection[ActiveJob]) -> None:
        """Take the operators from an earlier ingest, else request one unless another job has requested the same.

        The job waits while its token has its pieces in the queue.
        """
        key = ingest_key(job.stored)
        found = self._context.store.models.find_ingested(key)
        if found is not None:
            _take(job, found)
            return
        is_requested = any(_INGEST in each.requested and ingest_key(each.stored) == key for each in jobs)
        if not is_requested and not self._turns.is_free(job):
            return
        if job.stored.state is JobState.QUEUED:
            job.enter(JobState.INGESTING)
        if not is_requested:
            work_id = job.work_id(_INGEST)
            if not self._queues.has(work_id):
                stored = job.stored
                request_ingest(
                    self._context.view_of(stored.tenant),
                    self._queues,
                    key,
                    stored.token,
                    stored.device.isa,
                    job.id,
                    work_id,
                    stored.spec.model_name,
                )
            job.note_requested(_INGEST)
            self._turns.take(job)

    def save(self, key: IngestKey, event: Ingested) -> None:
        """Store the result of an ingest; the next `advance` takes it."""
        operators, log = event.operators, self._context.store.log
        tasks = [OperatorTask(item.workload_hash, item.name, item.weight) for item in operators]
        log.add_workloads([(item.workload_hash, item.workload) for item in operators])
        log.set_arithmetic(
            {item.workload_hash: Arithmetic(item.flops, item.io_bytes, item.written_bytes) for item in operators}
        )
        self._context.store.models.save_ingested(key, IngestedModel(event.target, event.target_key, tasks))


def _take(job: ActiveJob, found: IngestedModel) -> None:
    stored = job.stored
    stored.target, stored.target_key = with_cores(found.target, stored.cores), found.target_key
    job.operators = [
        StoredOperator(task.workload_hash, task.name, task.weight, selected=stored.spec.wants(task.name))
        for task in found.operators
    ]
    if not job.selected:
        names = some_of(sorted(task.name for task in found.operators))
        raise BadModel(f"no operator's name contains '{stored.spec.only}'; {stored.spec.model_name} has {names}")
    job.enter(JobState.TUNING)
