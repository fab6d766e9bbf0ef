"""A worker takes work from a queue, piece by piece, has its role do the work inside each signed message, and keeps the
books that the server reads.

Queues and registries lie in Redis as RQ lays them out. RQ's own loop is not used: it calls whatever a job in Redis
names. This one reads the signed message of a job, and nothing else of it.
"""

import contextlib
import logging
import os
import signal
import sys
import time
import uuid
import zlib
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import redis
from rq import Queue
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from fractune_core import tracing
from fractune_core.codec.plain_json import read_json
from fractune_core.errors import FractuneError, RedisGone, ShareUnavailable
from fractune_core.fleet.blobs import unpack
from fractune_core.fleet.messages import BuildWork, MeasureWork, RoundWork, SearchWork, TimeModelWork, Work
from fractune_core.fleet.redis_names import SERVER_STREAM
from fractune_core.fleet.signed_messages import Refused, open_dated_work
from fractune_core.tracing import log_fields
from fractune_workers.context import Meter, WorkerContext
from fractune_workers.roles import Role

ANSWER_TIMEOUT_S = 25.0
"""A worker that waits for work gives up a connection after this time: the network may have lost the answer."""
_WAIT_S = 15
"""Redis answers by then, though there is no work."""
_LOOK_S = 0.01
"""that work may take to come before what is kept for it is given up"""
_RECONNECT_EVERY_S = 1.0
_KEPT_S = 24 * 3600
"""How long Redis keeps the books of a worker that has died."""
_LOOKED_AT = 32
"""pieces of waiting work among which the next one may be chosen"""
_STAY_S = 20.0
"""Work of one owner is preferred for so long while others' waits: some ten times what a change of owner costs."""
_SAME_REQUEST_S = 1.0
"""A second signal within this time is the same request: a terminal and the command may both send one."""

_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """The worker was stopped while it waited for work."""


class Keeper(Protocol):
    """May keep something for the next piece of work, such as a claim on a GPU (`fractune_workers.roles.Role`)."""

    def keeps(self) -> bool:
        """Whether something is kept that others may be waiting for."""
        ...

    def rest(self) -> None:
        """Give it up: no work waits."""
        ...


class OwnersOrder:
    """Takes waiting work of the same owner as the last one first, so that the owner seldom changes.

    An owner is the description of a job in Redis. With one owner it asks Redis for nothing more than that.
    """

    def __init__(self, connection: redis.Redis, queue: Queue) -> None:
        self._redis = connection
        self._queue = queue
        self._owner: bytes | None = None
        self._since = 0.0
        self._has_several = False

    def note(self, job_id: str) -> None:
        """Note that this work is next."""
        owner: Any = self._redis.hget(Job.key_for(job_id), "description")
        if owner != self._owner:
            self._has_several |= self._owner is not None
            self._owner, self._since = owner, time.monotonic()

    def take(self) -> bytes | None:
        """The id of waiting work of the same owner, taken as `BLMOVE` takes the oldest; None = take that."""
        if not self._has_several or time.monotonic() - self._since > _STAY_S:
            return None
        with self._redis.pipeline() as pipe, contextlib.suppress(redis.WatchError):
            pipe.watch(self._queue.key)  # type: ignore[no-untyped-call]
            waiting: Any = pipe.lrange(self._queue.key, 0, _LOOKED_AT - 1)
            for job_id in waiting:
                if pipe.hget(Job.key_for(job_id.decode(errors="replace")), "description") == self._owner:
                    pipe.multi()
                    pipe.lrem(self._queue.key, 1, job_id)
                    pipe.rpush(self._queue.intermediate_queue_key, job_id)
                    pipe.execute()
                    return bytes(job_id)
        return None  # none waits, or the queue has changed meanwhile


class WorkLoop:
    """Serves `queue` under `name`. `do` is called with the id of a job and the message that it carries.

    What `keeper` keeps is given up before the loop waits for work. `by_owner`: whether it takes work in OwnersOrder.
    """

    def __init__(
        self,
        name: str,
        connection: redis.Redis,
        queue: str,
        do: Callable[[str, str], None],
        keeper: Keeper | None = None,
        *,
        by_owner: bool = False,
    ) -> None:
        self._name = name
        self._redis = connection
        self._queue = Queue(queue, connection=connection, serializer=JSONSerializer)
        self._do = do
        self._keeper = keeper
        self._order = OwnersOrder(connection, self._queue) if by_owner else None
        self._key = f"rq:worker:{name}"
        self._is_waiting = False
        self._stopped_at: float | None = None

    def stop_on_signals(self, note: Callable[[], None]) -> None:
        """At SIGTERM or SIGINT call `note`, and end after the work in hand; at a second one end the process."""

        def stop(_number: int, _frame: Any) -> None:
            if self._stopped_at is None:
                self._stopped_at = time.monotonic()
                note()
                if self._is_waiting:
                    raise _Stopped
            elif time.monotonic() - self._stopped_at > _SAME_REQUEST_S:
                raise SystemExit

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def run(self, most: int | None = None) -> None:
        """Work until stopped, or until `most` jobs were taken. Raises redis.RedisError."""
        taken = 0
        with contextlib.suppress(_Stopped):
            while self._stopped_at is None and taken != most:
                job_id = self.take_or_rest()
                if job_id is not None:
                    taken += 1
                    self.work_on(job_id)
        if self._keeper is not None:
            self._keeper.rest()
        self._redis.delete(self._key)

    def take_or_rest(self, wait_s: Any = _WAIT_S) -> str | None:
        """As `take`, but what is kept for the next job is given up when none is there."""
        if self._keeper is not None and self._keeper.keeps():
            job_id = self.take(_LOOK_S)
            if job_id is not None:
                return job_id
            self._keeper.rest()
        return self.take(wait_s)

    def take(self, wait_s: Any = _WAIT_S) -> str | None:
        """The id of the next job; None where none came in time, or Redis is away."""
        try:
            with self._redis.pipeline() as pipe:
                self._note_state(pipe, WorkerStatus.IDLE)
                pipe.execute()
            self._is_waiting = True
            if self._stopped_at is not None:  # a signal before `_is_waiting` was set raised nothing
                return None
            job_id: Any = self._order.take() if self._order is not None else None
            if job_id is None:
                job_id = self._redis.blmove(
                    self._queue.key, self._queue.intermediate_queue_key, wait_s, "LEFT", "RIGHT"
                )
            if job_id is not None and self._order is not None:
                self._order.note(job_id.decode(errors="replace"))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self._is_waiting = False
            _log.warning("Redis does not answer (%s); trying again", error)
            time.sleep(_RECONNECT_EVERY_S)
            return None
        finally:
            self._is_waiting = False
        return None if job_id is None else job_id.decode(errors="replace")

    def work_on(self, job_id: str) -> None:
        """Do what the job carries. Work that raises is left to the server, which gives it to another worker."""
        message = self._message(job_id)
        if message is None:
            self._redis.lrem(self._queue.intermediate_queue_key, 1, job_id)
            return
        started = self.begin(job_id)
        try:
            self._do(job_id, message)
        except redis.RedisError:
            raise
        except Exception:  # noqa: BLE001  whatever it is, the server must hear of it
            _log.exception("job %s on the queue %s could not be handled", job_id, self._queue.name)
            self._end(job_id, started, failed=True)
        else:
            self._end(job_id, started, failed=False)

    def _message(self, job_id: str) -> str | None:
        """The message that a job carries; empty for a job that is not ours, None where there is none."""
        try:
            data: Any = self._redis.hget(Job.key_for(job_id), "data")
            message = None if data is None else read_json(unpack(data))[2][0]
        except redis.ResponseError as error:
            _log.warning("job %s is refused: it cannot be read (%s)", job_id, error)
            return None
        except (IndexError, KeyError, TypeError, ValueError, zlib.error):
            return ""
        return message if message is None or isinstance(message, str) else ""

    def begin(self, job_id: str) -> str:
        """Note that this worker works on the job; how the registry of started jobs calls that."""
        started, now = f"{job_id}:{uuid.uuid4().hex}", time.time()
        execution = f"rq:execution:{started}"
        with self._redis.pipeline() as pipe:
            self._note_state(pipe, WorkerStatus.BUSY)
            pipe.hset(execution, mapping={"created_at": now, "worker_name": self._name})
            pipe.expire(execution, _KEPT_S)
            pipe.zadd(self._queue.started_job_registry.key, {started: now + _KEPT_S})
            pipe.hset(Job.key_for(job_id), "status", JobStatus.STARTED)
            pipe.lrem(self._queue.intermediate_queue_key, 1, job_id)
            pipe.execute()
        return started

    def _end(self, job_id: str, started: str, *, failed: bool) -> None:
        with self._redis.pipeline() as pipe:
            pipe.zrem(self._queue.started_job_registry.key, started)
            pipe.delete(f"rq:execution:{started}")
            if failed:
                pipe.zadd(self._queue.failed_job_registry.key, {job_id: time.time() + _KEPT_S})
            else:
                pipe.delete(Job.key_for(job_id))
            pipe.execute()

    def _note_state(self, pipe: Any, state: WorkerStatus) -> None:
        pipe.hset(self._key, "state", state)
        pipe.expire(self._key, _KEPT_S)


REDIS_LOST = (redis.ConnectionError, redis.TimeoutError, redis.OutOfMemoryError)
"""errors after which a worker ends, so that its work is queued again"""


class WorkHandler:
    """Does the work that comes over the queue of `role`."""

    def __init__(self, context: WorkerContext, role: Role) -> None:
        self._context = context
        self._role = role
        self.queue = role.queue()
        self._idle_since = time.perf_counter()
        self._in_hand: Work | None = None
        self._stops = False

    def note_stop(self) -> None:
        """Note that this process has to stop. Work that is cut off from now on is handed back, and does not count as a
        death. It returns at once: a signal's handler calls it.
        """
        self._stops = True
        if self._in_hand is not None:
            self._context.hand_back(self._in_hand)

    def handle(self, job_id: str, message: str) -> None:
        """Do the work of a message. A message that this fleet did not sign is refused and forgotten."""
        try:
            work, queued_at = open_dated_work(self._context.secret, self.queue, job_id, message)
        except Refused as error:
            with log_fields(work=job_id):
                _log.warning(
                    "job %s on the queue %s is refused, and nothing of it was done: %s", job_id, self.queue, error
                )
            return
        fields = log_fields(job=work.job, work=work.work_id)
        with fields, tracing.span(work.task, work.traceparent, work.job, **_span_attributes(work)):
            self._context.counts.begin(work.task, time.time() - queued_at)
            self._do(work)

    def _do(self, work: Work) -> None:
        """A worker that has lost its share or its Redis ends here, and the work is queued again."""
        context = self._context
        start, waited_before_s = time.perf_counter(), context.core_locks.waited_s

        def spent() -> tuple[float, float]:
            """Seconds until now, and how many of them it waited for locks."""
            return time.perf_counter() - start, context.core_locks.waited_s - waited_before_s

        meter = context.meter()
        self._in_hand = work
        if self._stops:
            context.hand_back(work)
        try:
            if not context.is_obsolete(work):
                self._role.handle(work)
            idle_s = start - self._idle_since
            _log.info(
                "%s took %.2f s, %.2f s of it waiting for locks; before it, %.2f s without work",
                work.task,
                *spent(),
                idle_s,
            )
        except REDIS_LOST as error:
            end(redis_lost(error))
        except ShareUnavailable as error:
            context.hand_back(work)
            end(error)
        except FractuneError as error:
            self._report(work, error, meter)
        except Exception as error:  # noqa: BLE001  whatever it is, the server must hear of it
            _log.exception("%s failed", work.task)
            self._report(work, FractuneError(f"{type(error).__name__}: {error}"), meter)
        finally:
            self._in_hand = None
            context.counts.end(work.task, *spent())
            self._idle_since = time.perf_counter()

    def _report(self, work: Work, error: FractuneError, meter: Meter) -> None:
        transaction = self._context.transaction(work, meter)
        transaction.event(SERVER_STREAM, transaction.failure(type(error).__name__, str(error)))
        transaction.send()


def _span_attributes(work: Work) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {"work": work.work_id}
    if isinstance(work, RoundWork):
        attributes["operator"] = work.round.operator.name
        attributes["candidates"] = work.count if isinstance(work, SearchWork) else len(work.candidates)
    if isinstance(work, SearchWork | BuildWork):
        attributes["share"] = ",".join(work.shares)
    elif isinstance(work, MeasureWork | TimeModelWork):
        attributes["share"] = work.share
    return attributes


def redis_lost(error: Exception) -> RedisGone:
    """The error for one of REDIS_LOST, with its remedy."""
    if isinstance(error, redis.OutOfMemoryError):
        return RedisGone(f"Redis is out of memory ({error}); give it more (maxmemory), then start this worker again")
    return RedisGone(f"Redis went away ({error}); start it, then start this worker again")


def end(error: FractuneError) -> NoReturn:
    """End at once, so that the work does not count as done: it is queued again once this worker is found dead."""
    sys.stderr.write(f"fractune: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)
