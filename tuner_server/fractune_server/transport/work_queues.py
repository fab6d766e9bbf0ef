"""Work on its way out: RQ queues, JSON only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from typing import cast

from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from fractune_core.messages import BLOB_TTL_S, HANDLER, Work, done_key, is_of_protocol, tune_queue

_JOB_TIMEOUT_S = 3 * 3600
"""a last resort: the worker's parent process holds the real deadlines"""
_FAILURE_TTL_S = 3600
"""long enough for the requeuer to see it"""

_log = logging.getLogger(__name__)


class WorkQueues:
    """The queues of all roles. Not for use by several threads at once."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def enqueue(self, queue: str, work: Work, *, at_front: bool = False) -> None:
        """Hand out work; RQ's job has the work's own id."""
        self._queue(queue).enqueue_call(
            HANDLER,
            args=(work,),
            job_id=work["work_id"],
            at_front=at_front,
            timeout=_JOB_TIMEOUT_S,
            result_ttl=0,
            failure_ttl=_FAILURE_TTL_S,
            description=f"{work['do']} {work['job']}",
        )

    def clear(self) -> None:
        """Drop all work that waits, of whatever job."""
        for queue in self.all():
            queue.delete(delete_jobs=True)

    def drop_foreign(self) -> None:
        """Drop work that another version has queued, which no worker of this one can do; it is asked for again."""
        for queue in self.all():
            for job_id in _held(queue):
                job = fetch(self._redis, job_id)
                if job is not None and (is_foreign(job) or not is_of_protocol(queue.name)):
                    _log.warning("%s is of another version of fractune: dropped, to be asked for again", job_id)
                    queue.intermediate_queue.remove(job_id)
                    job.delete()

    def drop_tuners_but(self, alive: Collection[str]) -> None:
        """Drop the queues of tuner instances that are gone: no worker will ever serve them."""
        keep = {tune_queue(instance) for instance in alive}
        for queue in self.all():
            if queue.name.startswith(tune_queue("")) and queue.name not in keep:
                queue.delete(delete_jobs=True)

    def has(self, work_id: str) -> bool:
        """True while the work waits or runs."""
        return bool(Job.exists(work_id, connection=self._redis))

    def withdraw(self, work_id: str) -> None:
        """Take work back, wherever it is; a worker that has begun it delivers for nothing."""
        self._redis.set(done_key(work_id), 1, ex=BLOB_TTL_S)
        job = fetch(self._redis, work_id)
        if job is not None:
            with contextlib.suppress(ValueError):  # it has just ended, and its worker deletes it
                job.delete()

    def all(self) -> list[Queue]:
        """Every queue that was ever used."""
        return Queue.all(self._redis, serializer=JSONSerializer)

    def idle(self) -> bool:
        """True when no work waits and none runs, anywhere."""
        with self._redis.pipeline(transaction=False) as pipe:
            for queue in self.all():
                pipe.llen(queue.key)
                pipe.llen(queue.intermediate_queue_key)
                pipe.zcard(queue.started_job_registry.key)
            return not any(pipe.execute())

    def _queue(self, name: str) -> Queue:
        return Queue(name, connection=self._redis, serializer=JSONSerializer)


def _held(queue: Queue) -> set[str]:
    """Ids of the jobs that wait in the queue, are being taken from it, run, or have failed."""
    return {
        *queue.get_job_ids(),
        *queue.intermediate_queue.get_job_ids(),
        *(job_id for job_id, _ in queue.started_job_registry.get_job_and_execution_ids(cleanup=False)),
        *queue.failed_job_registry.get_job_ids(cleanup=False),
    }


def fetch(redis: Redis, job_id: str) -> Job | None:
    """RQ's job; None when it is gone."""
    try:
        return Job.fetch(job_id, connection=redis, serializer=JSONSerializer)
    except NoSuchJobError:
        return None


def is_foreign(job: Job) -> bool:
    """True for work that another version of fractune has queued: its words may be other than ours."""
    return bool(job.func_name != HANDLER)


def work_of(job: Job) -> Work:
    return cast(Work, job.args[0])
