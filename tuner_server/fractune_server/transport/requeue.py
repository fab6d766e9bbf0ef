"""Work of a dead worker goes to another one. Work that kills every worker is divided, and in the end given up."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from redis import Redis
from rq import Queue
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus
from rq.worker import BaseWorker, WorkerStatus

from fractune_core.fleet import messages
from fractune_core.fleet.redis_names import EVENT_FIELD, SERVER_STREAM
from fractune_core.fleet.redis_state import CANCELLED, DONE, HANDED_BACK, is_marked, mark, unmark
from fractune_core.fleet.signed_messages import seal_event
from fractune_core.records import TRIAL_POLICY, UNTUNED, VALIDATION_POLICY, Kind, Status
from fractune_core.shares import Device, GrantedShare
from fractune_core.tracing import log_fields
from fractune_server.transport.live_workers import Fleet
from fractune_server.transport.work_queues import WorkQueues, delete, fetch, readable_names

ATTEMPTS = 3
_STUCK_S = 10.0
"""work that a worker took from the queue and did not start within this time is lost"""
_DEATHS = "deaths"

_log = logging.getLogger(__name__)


class Loss(StrEnum):
    """Why a worker no longer has its work."""

    WORKER_GONE = "worker_gone"
    """the worker died, or no longer holds the work"""
    HANDED_BACK = "handed_back"
    """the worker was stopped and handed the work back"""
    UNHANDLED = "unhandled"
    """the worker could not handle the work"""
    NEVER_BEGUN = "never_begun"
    """the worker died while taking the work"""


@dataclass(frozen=True)
class _HeldWork:
    """Work that was taken from a queue, at one moment."""

    queue: Queue
    executions: list[Execution]
    """of begun work, without the workers' names"""
    failed: list[str]
    taken: list[str]
    """between the queue and a worker"""


class Requeuer:
    """Calls `give_up` with work that has failed ATTEMPTS times, and `requeued` with other lost work.

    A batch of trials is divided before it is given up. Not thread-safe.
    """

    def __init__(
        self,
        redis: Redis,
        queues: WorkQueues,
        give_up: Callable[[messages.Work], None],
        requeued: Callable[[messages.Work, Loss], object] = lambda _work, _loss: None,
    ) -> None:
        self._redis = redis
        self._queues = queues
        self._give_up = give_up
        self._requeued = requeued
        self._taken_since: dict[str, float] = {}

    def sweep(self, fleet: Fleet) -> None:
        """Check all queues once. It takes three round trips, however much work there is, and more for lost work."""
        found = _held_work(self._redis, self._queues.all())
        running = _read(self._redis, [each for held in found for each in held.executions])
        idle = self._idle_workers(each.worker_name for each in running.values() if _alive(each, fleet))
        taken: dict[str, float] = {}
        for held in found:
            for execution in held.executions:
                if execution.id not in running:  # it has just ended
                    self._forget_ended(held.queue, execution)
                elif execution.worker_name in idle or not _alive(execution, fleet):
                    self._take_away(held.queue, execution)
            self._sweep_failed(held)
            taken.update(self._sweep_taken(held))
        self._taken_since = taken

    def _idle_workers(self, workers: Iterable[str]) -> set[str]:
        """Workers that wait for work: if they still hold some, they lost it when Redis went away."""
        names = sorted(set(workers))
        with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hget(f"{BaseWorker.redis_worker_namespace_prefix}{name}", "state")
            states = pipe.execute()
        return {name for name, state in zip(names, states, strict=True) if state == WorkerStatus.IDLE.encode()}

    def _forget_ended(self, queue: Queue, execution: Execution) -> None:
        if not Job.exists(execution.job_id, connection=self._redis):
            self._redis.zrem(queue.started_job_registry.key, execution.composite_key)

    def _take_away(self, queue: Queue, execution: Execution) -> None:
        job = fetch(self._redis, execution.job_id)
        with self._redis.pipeline() as pipe:
            pipe.zrem(queue.started_job_registry.key, execution.composite_key)
            pipe.zrem(ExecutionRegistry(execution.job_id, self._redis).key, execution.id)
            pipe.delete(execution.key)
            pipe.execute()
        if job is not None:
            self._again(queue, job, Loss.WORKER_GONE, f"worker {execution.worker_name} no longer holds it")

    def _sweep_failed(self, held: _HeldWork) -> None:
        for job_id in held.failed:
            job = fetch(self._redis, job_id)
            self._redis.zrem(held.queue.failed_job_registry.key, job_id)
            if job is not None:
                self._again(held.queue, job, Loss.UNHANDLED, "its worker could not handle it")

    def _sweep_taken(self, held: _HeldWork) -> dict[str, float]:
        """Requeue work that was taken and not started: its worker has died."""
        now = time.monotonic()
        taken: dict[str, float] = {}
        started = {execution.job_id for execution in held.executions}
        for job_id in (each for each in held.taken if each not in started):
            since = self._taken_since.get(job_id, now)
            if now - since < _STUCK_S:
                taken[job_id] = since
                continue
            held.queue.intermediate_queue.remove(job_id)
            job = fetch(self._redis, job_id)
            if job is not None:
                self._again(held.queue, job, Loss.NEVER_BEGUN, "its worker died while taking it")
        return taken

    def _again(self, queue: Queue, job: Job, loss: Loss, reason: str) -> None:
        queue.intermediate_queue.remove(job.id)
        work = self._queues.open_or_drop(queue, job)
        if work is not None:
            with log_fields(job=work.job, work=work.work_id):
                self._give_again(queue, job, work, loss, reason)

    def _give_again(self, queue: Queue, job: Job, work: messages.Work, loss: Loss, reason: str) -> None:
        """Requeue the work, or give it up. Work that was not begun or was handed back has killed no worker."""
        if is_marked(self._redis, CANCELLED, messages.cancelled_by(work)):
            delete(job)
            return
        handed_back = unmark(self._redis, HANDED_BACK, work.work_id)
        deaths = _deaths(job) + (0 if handed_back or loss is Loss.NEVER_BEGUN else 1)
        if deaths >= ATTEMPTS:
            self._divide_or_give_up(queue, job, work, reason)
            return
        _log.info("%s %s goes back to its queue: %s", work.task, job.id, reason)
        job.meta = {_DEATHS: deaths}
        with self._redis.pipeline() as pipe:
            job.save_meta()  # type: ignore[no-untyped-call]
            job.set_status(JobStatus.QUEUED, pipeline=pipe)
            queue.push_job_id(job.id, pipeline=pipe, at_front=True)
            pipe.execute()
        self._requeued(work, Loss.HANDED_BACK if handed_back else loss)

    def _divide_or_give_up(self, queue: Queue, job: Job, work: messages.Work, reason: str) -> None:
        pieces = _alone(work)
        for piece in pieces:
            self._queues.enqueue(queue.name, piece, at_front=True)
        if pieces:
            _log.warning("%s %s has killed %d workers: its candidates are divided", work.task, job.id, ATTEMPTS)
            self._queues.withdraw(work.work_id)
            return
        _log.warning("%s %s given up after %d attempts: %s", work.task, job.id, ATTEMPTS, reason)
        self._give_up(work)
        delete(job)


def _deaths(job: Job) -> int:
    """Workers that died with the job. 0 for anything but a count, because writers to Redis may write anything."""
    meta: object = job.meta
    count = meta.get(_DEATHS) if isinstance(meta, dict) else 0
    return count if isinstance(count, int) else 0


def _alone(work: messages.Work) -> list[messages.Work]:
    """A batch of trials in pieces of one candidate, so that none is blamed for another.

    Empty for a batch of one, and for work that cannot be divided, such as finalists, which are timed interleaved.
    """
    if (
        not isinstance(work, messages.BuildWork | messages.MeasureWork)
        or work.purpose is not Kind.TRIAL
        or len(work.candidates) == 1
    ):
        return []
    whole: Any = work
    return [
        replace(whole, work_id=f"{work.work_id}_{at}", candidates=[each]) for at, each in enumerate(work.candidates)
    ]


def _held_work(redis: Redis, queues: Sequence[Queue]) -> list[_HeldWork]:
    with redis.pipeline(transaction=False) as pipe:
        for queue in queues:
            pipe.zrange(queue.started_job_registry.key, 0, -1)
            pipe.zrange(queue.failed_job_registry.key, 0, -1)
            pipe.lrange(queue.intermediate_queue_key, 0, -1)
        found = iter(pipe.execute())
    return [
        _HeldWork(
            queue,
            [
                Execution.from_composite_key(each, redis)
                for each in readable_names(next(found), queue.name)
                if each.count(":") == 1
            ],
            readable_names(next(found), queue.name),
            readable_names(next(found), queue.name),
        )
        for queue in queues
    ]


def _read(redis: Redis, executions: Sequence[Execution]) -> dict[str, Execution]:
    """Running executions by id, with the worker's name and the start."""
    with redis.pipeline(transaction=False) as pipe:
        for execution in executions:
            pipe.hmget(execution.key, "worker_name", "created_at")
        found = pipe.execute()
    running: dict[str, Execution] = {}
    for execution, (worker, created_at) in zip(executions, found, strict=True):
        if created_at is not None:
            execution.worker_name = (worker or b"").decode(errors="replace")
            execution.created_at = _time(created_at)
            running[execution.id] = execution
    return running


def _time(seconds: bytes) -> datetime:
    """1970 for what is no time: it was no worker of ours that wrote it."""
    try:
        return datetime.fromtimestamp(float(seconds), tz=UTC)
    except (OSError, OverflowError, ValueError):
        return datetime.fromtimestamp(0, tz=UTC)


def _alive(execution: Execution, fleet: Fleet) -> bool:
    """Whether its worker lives. A worker of the same name that started after the work is another one."""
    worker = fleet.workers.get(execution.worker_name)
    return worker is not None and worker.started_at <= execution.created_at.timestamp()


@dataclass(frozen=True)
class RoundPlace:
    """Where the candidates of a round are measured."""

    device: Device
    granted: Mapping[str, GrantedShare]
    """by share as text"""


def write_dead_letters(redis: Redis, secret: bytes, work: messages.Work, place: RoundPlace | None) -> None:
    """Send failed results for the work, through the results streams like all results.

    `place`: of the work's round; None if the round has ended, or the work has none.
    """
    if isinstance(work, messages.RoundWork) and place is None:
        return
    with redis.pipeline() as pipe:
        if place is not None and isinstance(work, messages.BuildWork | messages.MeasureWork):
            for event in _crashes(work, place):
                pipe.xadd(work.reply, {EVENT_FIELD: seal_event(secret, event)})
        else:
            pipe.xadd(SERVER_STREAM, {EVENT_FIELD: seal_event(secret, _failure(work))})
        mark(pipe, DONE, work.work_id)
        pipe.execute()


def _crashes(work: messages.BuildWork | messages.MeasureWork, place: RoundPlace) -> Iterator[messages.Event]:
    """Of a candidate that is validated at once, its trial: with it the round ends."""
    shares = work.shares if isinstance(work, messages.BuildWork) else [work.share]
    validates = work.round.validates
    for share in (each for each in shares if each in place.granted):
        for item in (each for each in work.candidates if not (validates and each.trace == UNTUNED)):
            record = messages.work_record(
                work,
                item,
                place.device,
                place.granted[share],
                Status.CRASHED,
                f"{ATTEMPTS} workers died while they had this batch ({work.task})",
                VALIDATION_POLICY if work.purpose is Kind.VALIDATION else TRIAL_POLICY,
            )
            record = messages.trial_of(work, record) if validates else record
            yield messages.Measured(job=work.job, round_id=work.round.id, record=record)


def _failure(work: messages.Work) -> messages.WorkFailed:
    message = f"{ATTEMPTS} workers died during this work: {work.task}; see their logs"
    round_id = work.round.id if work.task == "search" else ""
    return messages.WorkFailed(job=work.job, task=work.task, round_id=round_id, error="JobFailed", message=message)
