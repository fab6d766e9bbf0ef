"""RQ's loop and RQ's job, cut down to what a worker may be made to do through Redis: one piece of signed work."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Queue, SimpleWorker
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker_registration import clean_worker_registry

from fractune_core.fleet.redis_names import HANDLER
from fractune_workers import entry

_DATA = b"data"
_WORKER_TTL_S = 30
"""RQ asks a queue anew after 15 s less than this, and takes a line to Redis for dead after 5 s less: so long does a
worker that waits take to find out that the network has lost the answer"""
ANSWER_TIMEOUT_S = 25.0
_TIMEOUT_S = 24 * 3600
"""RQ's own limit: far out, because the supervisor holds the real deadlines"""
_FAILURE_TTL_S = 3600
"""long enough for the server to see it"""

_log = logging.getLogger(__name__)


class WorkJob(Job):
    """A job of RQ's that can call one function, `entry.handle`.

    Of what Redis says about it, only its data is read, and of that only the message inside. Whatever else is there
    (another function, callbacks, webhooks, dependencies, retries, limits) is not.
    """

    @classmethod
    def fetch(cls, id: str, connection: Redis | None = None, serializer: Any = None) -> Job:  # noqa: A002
        """Raises NoSuchJobError for what cannot be read, too: RQ's loop passes over it."""
        try:
            return super().fetch(id, connection, serializer)
        except NoSuchJobError:
            raise
        except (KeyError, TypeError, ValueError, ResponseError) as error:
            _log.warning("job %r is refused: it is none of ours, and cannot be read (%r)", id, error)
            raise NoSuchJobError(f"job {id} cannot be read") from error

    def restore(self, raw_data: Any) -> None:
        super().restore({field: value for field, value in raw_data.items() if field == _DATA})
        message = _message(self.data)
        self.func_name, self.instance, self.args, self.kwargs = HANDLER, None, (message,), {}
        self.timeout, self.result_ttl, self.failure_ttl = _TIMEOUT_S, 0, _FAILURE_TTL_S

    def perform(self) -> None:
        entry.handle(self.origin, self.id, self.args[0])


class WorkLoop(SimpleWorker):
    """RQ's worker without a fork for each piece of work: the role's child is the process that may crash.

    It takes no commands over Redis, and leaves the registries of jobs to the server.
    """

    def __init__(self, name: str, connection: Redis, queues: Sequence[str], job_class: type[WorkJob] = WorkJob) -> None:
        how: dict[str, Any] = {"connection": connection, "serializer": JSONSerializer, "job_class": job_class}
        super().__init__([Queue(each, **how) for each in queues], name=name, worker_ttl=_WORKER_TTL_S, **how)

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """RQ waits for a Redis that is away, and would end over one that does not answer."""
        while True:
            try:
                return super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)
            except RedisTimeoutError as error:
                _log.warning("Redis does not answer (%s); asking again", error)

    def execute_job(self, job: Job, queue: Queue) -> None:
        job.origin = queue.name  # whatever the job says
        super().execute_job(job, queue)

    def handle_job_success(self, job: Job, queue: Queue, started_job_registry: StartedJobRegistry) -> None:  # noqa: ARG002
        """As RQ's own, for jobs that keep no result and that no other job waits for: one transaction. RQ's looks first
        for what ours do not have, in nine round trips, and holds a second connection meanwhile.
        """
        took = job.ended_at - job.started_at  # type: ignore[operator]  # RQ has set both
        with self.connection.pipeline() as pipe:
            self.increment_successful_job_count(pipeline=pipe)
            self.increment_total_working_time(took, pipe)
            self.cleanup_execution(job, pipeline=pipe)
            # Not both by one command: no rule of a worker's user in Redis is for both kinds of key.
            pipe.delete(job.key)
            pipe.delete(job.execution_registry.key)
            pipe.execute()

    def handle_warm_shutdown_request(self) -> None:
        """SIGTERM or SIGINT, the first one: RQ's loop ends after the work in hand."""
        entry.tell_to_stop()

    def _set_ip_address(self, connection: Redis) -> None:  # noqa: ARG002
        """Not looked for: a worker's user may not list who else is connected."""
        self.ip_address = "unknown"

    def subscribe(self) -> None:
        pass

    def unsubscribe(self) -> None:
        pass

    def run_maintenance_tasks(self) -> None:
        """Forget workers that are gone. RQ's own tasks also look at jobs, and call what a job names for a failure."""
        for queue in self.queues:
            clean_worker_registry(queue)
        self.last_cleaned_at = now()  # type: ignore[assignment]  # RQ takes it for its first value, None


def _message(data: bytes) -> str:
    """What a job carries: the one argument of RQ's call; empty for anything else."""
    try:
        message = json.loads(data)[2][0]
    except (IndexError, KeyError, TypeError, ValueError):
        return ""
    return message if isinstance(message, str) else ""
