"""The open jobs in memory: loaded from the store, saved there, and dropped when they have ended."""

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fractune_core import tracing
from fractune_core.errors import FractuneError, QuotaExceeded, StateUnusable, one_line
from fractune_core.fleet.blobs import release_blobs
from fractune_core.fleet.redis_names import model_blob
from fractune_core.jobs import JobState
from fractune_core.tracing import log_fields
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.ingest import ingest_key
from fractune_server.engine.rounds import Rounds
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import BUILD, COMPILE, MEASURE, TUNE, Fleet
from fractune_server.transport.work_queues import mark_cancelled

MISSING_S = 2.0
"""a job notes a worker that has been missing for this long"""


@dataclass(frozen=True)
class NeededWorker:
    role: str
    share: str = ""
    """of a measuring worker"""

    def __str__(self) -> str:
        return f"role {self.role}" + (f", share {self.share}" if self.share else "")


class MissingWorkers:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self) -> None:
        self._since: dict[NeededWorker, float] = {}
        """monotonic seconds"""

    def note(self, fleet: Fleet, jobs: Collection[ActiveJob]) -> None:
        """Note in each job the workers that it has waited for too long, and the measurements that keep them waiting."""
        now = time.monotonic()
        missing: dict[NeededWorker, float] = {}
        for job in jobs:
            lacking = [needed for needed in needed_workers(job) if not _is_live(needed, fleet, job)]
            missing.update((needed, self._since.get(needed, now)) for needed in lacking)
            late = [f"a worker: {needed}" for needed in lacking if now - missing[needed] >= MISSING_S]
            job.note_waiting([*late, *_held_cores(fleet, job)])
        self._since = missing


def needed_workers(job: ActiveJob) -> list[NeededWorker]:
    """Workers that the job's present phase needs."""
    is_timing = job.stored.state is JobState.TIMING
    measuring = [NeededWorker(MEASURE, share) for share in (job.timed_shares if is_timing else job.shares)]
    match job.stored.state:
        case JobState.QUEUED | JobState.INGESTING | JobState.COMPILING:
            return [NeededWorker(COMPILE)]
        case JobState.TUNING:
            return [NeededWorker(TUNE), NeededWorker(BUILD), *measuring]
        case JobState.VALIDATING:
            return [NeededWorker(BUILD), *measuring]
        case _:
            return measuring


def _held_cores(fleet: Fleet, job: ActiveJob) -> list[str]:
    """The measurements of other stacks that keep the job's workers from their cores."""
    needed = {(each.role, each.share) for each in needed_workers(job)}
    own = {(worker.host, worker.pid) for worker in fleet.workers.values()}
    holders = {
        (holder.host, holder.pid)
        for worker in fleet.workers.values()
        if (worker.role, worker.share) in needed
        for holder in worker.waits_for
    }
    return [
        f"the measurement cores of {one_line(host)}, held by PID {pid} of another stack"
        for host, pid in sorted(holders - own)
    ]


def _is_live(needed: NeededWorker, fleet: Fleet, job: ActiveJob) -> bool:
    if needed.role != MEASURE:
        return bool(fleet.of_role(needed.role))
    device = job.stored.device.key
    return any(held.device.key == device and held.granted.share == needed.share for held in fleet.offers)


SAVE_EVERY_S = 0.2
_NEEDS_OPERATORS = (JobState.TUNING, JobState.VALIDATING, JobState.COMPILING)
_OTHER_VERSION = "another version of fractune read its model; the model is read again, and the search starts again"

_log = logging.getLogger(__name__)


class OpenJobs:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self, context: ServerContext, rounds: Rounds) -> None:
        self._context = context
        self._rounds = rounds
        self._jobs: dict[str, ActiveJob] = {}
        self._loaded = False
        """True once the rounds of an earlier server are loaded"""

    def all(self) -> list[ActiveJob]:
        return list(self._jobs.values())

    def get(self, name: str) -> ActiveJob | None:
        return self._jobs.get(name)

    def update(self) -> bool:
        """Load new jobs, and drop cancelled ones. True if there was a new one."""
        still_open = self._context.store.jobs.open_ids()
        for name in set(self._jobs) - still_open:
            self._drop(self._jobs[name])
        new = still_open - set(self._jobs)
        for name in new:
            self._jobs[name] = self._load(name)
        if not self._loaded:
            self._rounds.load(self.all())
            self._loaded = True
        return bool(new)

    def fail(self, job: ActiveJob, error: FractuneError) -> None:
        """End the job with the error; workers skip the rest of its work.

        Raises StateUnusable: the server cannot continue without its state. A quota is its owner's alone.
        """
        if isinstance(error, StateUnusable) and not isinstance(error, QuotaExceeded):
            raise error
        with log_fields(job=job.id):
            _log.info("job %s failed: %s", job.id, error)
        job.end(JobState.FAILED, type(error).__name__, str(error))
        mark_cancelled(self._context.redis, job.id)

    def save(self) -> None:
        """Write the changed jobs, and drop those that have ended."""
        now = time.monotonic()
        # A new state is written immediately; changed counts may wait for further ones.
        due = [
            job
            for job in self.all()
            if job.dirty and (now - job.saved_at >= SAVE_EVERY_S or job.stored.state is not job.saved_state)
        ]
        if due:
            with self._context.store.writing():
                kept = [self._save(job, now) for job in due]
            for job, is_kept in zip(due, kept, strict=True):
                if not is_kept or not job.stored.state.open:
                    self._drop(job)
            self._context.notifier.announce()

    def release(self, blobs: Iterable[str]) -> None:
        """Release the blobs that no open job needs, and no call that waits for a model's operators."""
        awaited = {model_blob(key.tenant, key.model) for key in self._context.model_ingests.awaited()}
        release_blobs(self._context.redis, set(blobs).difference(awaited, *(job.blobs for job in self.all())))

    def _drop(self, job: ActiveJob) -> None:
        """Forget a job that has ended, here or by a cancelling call, and release what Redis holds only for it."""
        self._rounds.leave(self._jobs.pop(job.id))
        self.release(job.blobs)
        tracing.note_job(job.id, job.stored.created_at, job.stored.ended_at or time.time())

    def _load(self, name: str) -> ActiveJob:
        store = self._context.store
        job = ActiveJob(store.jobs.get(name), store.jobs.operators(name))
        if job.stored.state in _NEEDS_OPERATORS and not self._is_ingested(job):
            self._restart(job)
        job.note_saved(dict(enumerate(job.operators)))
        if job.operators:
            job.load_plans(store)
        return job

    def _is_ingested(self, job: ActiveJob) -> bool:
        """Whether this version finds the job's operators in the model; it cannot compile a bundle for others."""
        found = self._context.store.models.find_ingested(ingest_key(job.stored))
        names = [operator.workload_hash for operator in job.operators]
        return found is not None and names == [task.workload_hash for task in found.operators]

    def _restart(self, job: ActiveJob) -> None:
        """Ingest the model again. Trials of operators that both versions know count for the job."""
        with log_fields(job=job.id):
            _log.warning("job %s: %s", job.id, _OTHER_VERSION)
        job.restart(_OTHER_VERSION)
        with self._context.store.writing():
            self._context.store.jobs.save(job.stored)
            self._context.store.jobs.drop_operators(job.id)

    def _save(self, job: ActiveJob, now: float) -> bool:
        """False if the job has ended in the store meanwhile."""
        job.count_progress()
        job.stored.progress.busy_s = self._context.store.ledger.worked_s(job.id)
        changed = job.changed_operators()
        kept = self._context.store.jobs.save(job.stored, changed)
        job.note_saved(changed)
        job.dirty, job.saved_at, job.saved_state = False, now, job.stored.state
        return kept
