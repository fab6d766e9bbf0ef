"""The handler of a worker's queue: it opens the message of a job, and has the worker's role do the work inside."""

import logging
import os
import sys
import time
from typing import NoReturn

import redis

from fractune_core import tracing
from fractune_core.errors import FractuneError, RedisGone, ShareUnavailable
from fractune_core.fleet.messages import BuildWork, MeasureWork, RoundWork, SearchWork, TimeModelWork, Work
from fractune_core.fleet.redis_names import SERVER_STREAM
from fractune_core.fleet.signed_messages import Refused, open_dated_work
from fractune_core.tracing import log_fields
from fractune_workers.context import Meter, WorkerContext
from fractune_workers.roles import Role

_log = logging.getLogger(__name__)


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
