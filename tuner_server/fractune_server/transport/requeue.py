"""Work whose worker has died is given to another; what kills every worker, alone in the end, is given up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

from redis import Redis
from rq import Queue
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus
from rq.worker import BaseWorker, WorkerStatus

from fractune_core.messages import Work, cancelled_by, handed_back_key
from fractune_core.records import Kind
from fractune_server.transport.live_workers import Fleet
from fractune_server.transport.work_queues import WorkQueues, fetch

ATTEMPTS = 3
_STUCK_S = 10.0
"""work that a worker took off the queue and did not start for this long is lost"""
_DEATHS = "deaths"

_log = logging.getLogger(__name__)


class Requeuer:
    """One thread only. `give_up` is called with work that has failed ATTEMPTS times; a batch of trials is divided
    before.
    """

    def __init__(self, redis: Redis, queues: WorkQueues, give_up: Callable[[Work], None]) -> None:
        self._redis = redis
        self._queues = queues
        self._give_up = give_up
        self._taken_since: dict[str, float] = {}

    def sweep(self, fleet: Fleet) -> None:
        """Look through all queues once."""
        taken: dict[str, float] = {}
        for queue in self._queues.all():
            self._sweep_started(queue, fleet)
            self._sweep_failed(queue)
            taken.update(self._sweep_taken(queue))
        self._taken_since = taken

    def _sweep_started(self, queue: Queue, fleet: Fleet) -> None:
        registry = queue.started_job_registry
        for job_id, execution_id in registry.get_job_and_execution_ids(cleanup=False):
            execution = Execution(execution_id, job_id, self._redis)
            try:
                execution.refresh()  # type: ignore[no-untyped-call]
            except ValueError:  # it has just ended
                if not Job.exists(job_id, connection=self._redis):
                    self._redis.zrem(registry.key, execution.composite_key)
                continue
            if _alive(execution, fleet) and not self._is_idle(execution.worker_name):
                continue
            job = fetch(self._redis, job_id)
            with self._redis.pipeline() as pipe:
                pipe.zrem(registry.key, execution.composite_key)
                pipe.zrem(ExecutionRegistry(job_id, self._redis).key, execution.id)
                pipe.delete(execution.key)
                pipe.execute()
            if job is not None:
                self._again(queue, job, f"worker {execution.worker_name} no longer holds it")

    def _is_idle(self, worker: str) -> bool:
        """True when the worker waits for work: what it still holds was cut off when Redis went away."""
        state = self._redis.hget(f"{BaseWorker.redis_worker_namespace_prefix}{worker}", "state")
        return state == WorkerStatus.IDLE.encode()

    def _sweep_failed(self, queue: Queue) -> None:
        registry = queue.failed_job_registry
        for job_id in registry.get_job_ids(cleanup=False):
            job = fetch(self._redis, job_id)
            self._redis.zrem(registry.key, job_id)
            if job is not None:
                self._again(queue, job, "its worker could not handle it")

    def _sweep_taken(self, queue: Queue) -> dict[str, float]:
        """Between taking work and starting it lies a moment; work that stays there has lost its worker."""
        now = time.monotonic()
        taken: dict[str, float] = {}
        started = {job_id for job_id, _ in queue.started_job_registry.get_job_and_execution_ids(cleanup=False)}
        for job_id in queue.intermediate_queue.get_job_ids():
            if job_id in started:
                continue
            since = self._taken_since.get(job_id, now)
            if now - since < _STUCK_S:
                taken[job_id] = since
                continue
            queue.intermediate_queue.remove(job_id)
            job = fetch(self._redis, job_id)
            if job is not None:
                self._again(queue, job, "its worker died while taking it", begun=False)
        return taken

    def _again(self, queue: Queue, job: Job, reason: str, *, begun: bool = True) -> None:
        """Give it to another worker, or up. What no worker has begun, or what was handed back, has killed nobody."""
        queue.intermediate_queue.remove(job.id)
        work = self._queues.open_or_drop(queue, job)
        if work is None:
            return
        if self._redis.exists(cancelled_by(work)):
            job.delete()
            return
        handed_back = bool(self._redis.delete(handed_back_key(work["work_id"])))
        deaths = job.meta.get(_DEATHS, 0) + (1 if begun and not handed_back else 0)
        if deaths >= ATTEMPTS:
            self._divide_or_give_up(queue, job, work, reason)
            return
        _log.info("%s %s goes back to its queue: %s", work["do"], job.id, reason)
        job.meta[_DEATHS] = deaths
        with self._redis.pipeline() as pipe:
            job.save_meta()  # type: ignore[no-untyped-call]
            job.set_status(JobStatus.QUEUED, pipeline=pipe)
            queue.push_job_id(job.id, pipeline=pipe, at_front=True)
            pipe.execute()

    def _divide_or_give_up(self, queue: Queue, job: Job, work: Work, reason: str) -> None:
        pieces = _alone(work)
        for piece in pieces:
            self._queues.enqueue(queue.name, piece, at_front=True)
        if pieces:
            _log.warning("%s %s has ended %d workers: its candidates go alone", work["do"], job.id, ATTEMPTS)
            self._queues.withdraw(work["work_id"])
            return
        _log.warning("%s %s given up after %d attempts: %s", work["do"], job.id, ATTEMPTS, reason)
        self._give_up(work)
        job.delete()


def _alone(work: Work) -> list[Work]:
    """The work of a trial's batch in pieces of one candidate, so that none is blamed for another; none for a batch of
    one, and for what cannot be divided: finalists are timed in turn.
    """
    if (work["do"] != "build" and work["do"] != "measure") or work["kind"] != Kind.TRIAL:
        return []
    items, name = (work["candidates"], "candidates") if work["do"] == "build" else (work["artifacts"], "artifacts")
    pieces: Any = [{**work, name: [item], "work_id": f"{work['work_id']}_{at}"} for at, item in enumerate(items)]
    return cast("list[Work]", pieces) if len(items) > 1 else []


def _alive(execution: Execution, fleet: Fleet) -> bool:
    """A worker that came up under the same name after the work had begun is not the one that took it."""
    worker = fleet.workers.get(execution.worker_name)
    return worker is not None and worker["started_at"] <= execution.created_at.timestamp()
