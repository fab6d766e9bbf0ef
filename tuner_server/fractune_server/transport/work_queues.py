"""Work for the workers: RQ queues of signed JSON, the model files and workloads that they need beside it, and marks of
cancelled work.
"""

import itertools
import logging
import zlib
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, cast

from redis import Redis
from rq import Queue
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.job import Job, parse_job_id
from rq.queue import EnqueueData
from rq.serializers import JSONSerializer

from fractune_core import tracing
from fractune_core.fleet import redis_names
from fractune_core.fleet.blobs import put_blob, put_signed_blob, renew_blob, renew_signed_blob, unpack
from fractune_core.fleet.messages import IngestWork, Work
from fractune_core.fleet.redis_state import CANCELLED, DONE, is_marked, mark
from fractune_core.fleet.signed_messages import Refused, open_work, seal_work
from fractune_core.tracing import log_fields
from fractune_server.store.store import IngestKey
from fractune_server.transport.context import ServerContext, TenantView

_JOB_FIELDS = ("data", "meta", "status", "origin")
"""the fields of RQ's job that the server reads; RQ would unpack others of any size"""

_log = logging.getLogger(__name__)


class WorkQueues:
    """The queues of all roles. One thread at a time."""

    def __init__(self, redis: Redis, secret: bytes) -> None:
        self.redis = redis
        self._secret = secret

    def enqueue(self, queue: str, *works: Work, at_front: bool = False) -> None:
        """Hand out all of the works or none, in one round trip. RQ's jobs have the ids of the works."""
        with self.redis.pipeline() as pipe:
            data = [self._prepare(queue, work, at_front=at_front) for work in works]
            self._queue(queue).enqueue_many(data, pipeline=pipe)
            pipe.execute()

    def _prepare(self, queue: str, work: Work, *, at_front: bool) -> EnqueueData:
        message = seal_work(self._secret, queue, tracing.with_parent(work))
        return Queue.prepare_data(
            redis_names.HANDLER, args=(message,), job_id=work.work_id, at_front=at_front, description=work.tenant
        )

    def clear(self) -> None:
        """Drop all waiting work of all jobs."""
        for queue in self.all():
            _remove(queue)

    def drop_foreign(self) -> None:
        """Drop work that no worker of this version and secret would do; the engine requests its own work again."""
        for queue in self.all():
            for job_id in _held(queue):
                job = fetch(self.redis, job_id)
                if job is None:
                    continue
                if not redis_names.is_of_protocol(queue.name):
                    with log_fields(work=job_id):
                        _log.warning("dropped %s of another version of fractune; it is requested again", job_id)
                    _drop(queue, job)
                else:
                    self.open_or_drop(queue, job)

    def open_or_drop(self, queue: Queue, job: Job) -> Work | None:
        """The work of a job in this queue. Work that every worker would refuse is dropped, and logged: None."""
        try:
            work = open_work(self._secret, queue.name, job.id, message_of(job))
        except Refused as error:
            with log_fields(work=job.id):
                _log.warning("dropped %s from the queue %s: %s", job.id, queue.name, error)
            _drop(queue, job)
            return None
        return work

    def drop_tuners_but(self, alive: Collection[str]) -> None:
        """Drop the queues of all tuner instances but these: no worker will serve them."""
        keep = {redis_names.tune_queue(instance) for instance in alive}
        for queue in self.all():
            if queue.name.startswith(redis_names.tune_queue("")) and queue.name not in keep:
                _remove(queue)

    def has(self, work_id: str) -> bool:
        """Whether the work waits or runs."""
        return bool(Job.exists(work_id, connection=self.redis))

    def knows(self, work_id: str) -> bool:
        """Whether the work was handed out: it waits, runs, or was delivered or withdrawn within MARK_TTL_S."""
        # In this order, because a worker sets its mark before it removes its job.
        return self.has(work_id) or is_marked(self.redis, DONE, work_id)

    def withdraw(self, work_id: str) -> None:
        """Withdraw work, wherever it is. The results of a worker that has begun it are dropped."""
        mark(self.redis, DONE, work_id)
        job = fetch(self.redis, work_id)
        if job is not None:
            delete(job)

    def all(self) -> list[Queue]:
        """Every queue that was ever used."""
        return all_queues(self.redis)

    def idle(self) -> bool:
        """Whether no work waits or runs in any queue."""
        with self.redis.pipeline(transaction=False) as pipe:
            for queue in self.all():
                pipe.llen(queue.key)
                pipe.llen(queue.intermediate_queue_key)
                pipe.zcard(queue.started_job_registry.key)
            return not any(pipe.execute())

    def _queue(self, name: str) -> Queue:
        return Queue(name, connection=self.redis, serializer=JSONSerializer)


def all_queues(redis: Redis) -> list[Queue]:
    """Every queue of RQ's; what else was written among their names is passed over."""
    prefix = Queue.redis_queue_namespace_prefix
    keys = cast("set[bytes]", redis.smembers(Queue.redis_queues_keys))
    return [
        Queue.from_queue_key(key, connection=redis, serializer=JSONSerializer)
        for key in readable_names(keys, Queue.redis_queues_keys)
        if key.startswith(prefix) and key != prefix
    ]


def readable_names(names: Iterable[bytes], place: str) -> list[str]:
    """Names in Redis, without those that are not UTF-8: writers to Redis may write anything."""
    readable = []
    for name in names:
        try:
            readable.append(name.decode())
        except UnicodeDecodeError:
            _warn_once(place, name)
    return readable


@lru_cache(maxsize=1024)
def _warn_once(place: str, name: bytes) -> None:
    _log.warning("%s in Redis has the name %r, which is not UTF-8; it is passed over", place, name[:80])


def _held(queue: Queue) -> set[str]:
    """Ids of the jobs that wait in the queue, are being taken from it, run, or have failed."""
    with queue.connection.pipeline(transaction=False) as pipe:
        pipe.lrange(queue.key, 0, -1)
        pipe.lrange(queue.intermediate_queue_key, 0, -1)
        pipe.zrange(queue.failed_job_registry.key, 0, -1)
        pipe.zrange(queue.started_job_registry.key, 0, -1)
        *jobs, executions = (readable_names(names, queue.name) for names in pipe.execute())
    return {*itertools.chain(*jobs), *(each.partition(":")[0] for each in executions)}


def _remove(queue: Queue) -> None:
    """Remove the queue with its waiting work. RQ's own way runs a script in Redis, which fractune's users may not."""
    waiting = readable_names(cast("list[bytes]", queue.connection.lrange(queue.key, 0, -1)), queue.name)
    with queue.connection.pipeline() as pipe:
        pipe.delete(queue.key, *map(Job.key_for, waiting))
        pipe.srem(Queue.redis_queues_keys, queue.key)
        pipe.execute()


def _drop(queue: Queue, job: Job) -> None:
    queue.intermediate_queue.remove(job.id)
    delete(job)


def delete(job: Job) -> None:
    """Delete RQ's job, wherever it is; its worker may do so at the same time."""
    try:
        job.delete()
    except (InvalidJobOperation, ValueError):  # it has lost its status, or has one that RQ does not know
        job.connection.delete(job.key)


def fetch(redis: Redis, job_id: str) -> Job | None:
    """RQ's job; None if it is gone. A job that RQ cannot read is removed."""
    try:
        job = Job(parse_job_id(job_id), connection=redis, serializer=JSONSerializer)
        found = zip(_JOB_FIELDS, cast("list[Any]", redis.hmget(job.key, _JOB_FIELDS)), strict=True)
        fields = {name.encode(): value for name, value in found if value is not None}
        if b"data" in fields:
            unpack(fields[b"data"])
        job.restore(fields)
        return job
    except NoSuchJobError:
        return None
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        with log_fields(work=job_id):
            _log.warning("dropped job %s: it is not a job of fractune, and cannot be read (%r)", job_id, error)
        redis.delete(Job.key_for(job_id))
        return None


def message_of(job: Job) -> str:
    """The message of the job; empty if it is not a job of fractune."""
    try:
        message = job.args[0]
    except (DeserializationError, IndexError, KeyError, TypeError):
        return ""
    return message if isinstance(message, str) else ""


def request_ingest(
    view: TenantView,
    queues: WorkQueues,
    key: IngestKey,
    owner: str,
    isa: str,
    job: str,
    work_id: str,
    model_name: str = "",
) -> None:
    """Hand out the ingest of a model for `owner`. Errors call the file `model_name`, or as its first upload did. Raises
    NotFound if the model or its file is missing.
    """
    model = view.models.get(key.model)
    send_model(queues.redis, view, key.model)
    work = IngestWork(
        work_id=work_id,
        job=job,
        tenant=key.tenant,
        model=key.model,
        model_name=model_name or model.display_name,
        owner=owner,
        inputs=key.inputs,
        target=key.target,
        isa=isa,
    )
    queues.enqueue(redis_names.COMPILE_QUEUE, work)


def send_model(connection: Redis, view: TenantView, sha256: str) -> None:
    """Put a model file of the view where workers find it. Raises NotFound."""
    name = redis_names.model_blob(view.sight.own, sha256)
    if not renew_blob(connection, name):
        put_blob(connection, name, view.files.model(sha256))


def send_workload(context: ServerContext, workload_hash: str) -> None:
    """Put a workload where workers find it."""
    name = redis_names.workload_blob(workload_hash)
    if not renew_signed_blob(context.redis, context.secret, name):
        put_signed_blob(context.redis, context.secret, name, context.store.log.workload(workload_hash).encode())


def mark_cancelled(connection: Redis, name: str) -> None:
    """Workers skip the rest of the round, or the rest of the job's own work."""
    mark(connection, CANCELLED, name)
