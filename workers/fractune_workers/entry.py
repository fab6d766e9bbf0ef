"""Where RQ calls in: a message is opened, and the role of this process does the work inside."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, NoReturn

import redis

from fractune_core import tracing
from fractune_core.errors import FractuneError, RedisGone, ShareUnavailable
from fractune_core.fleet.messages import Work, WorkFailed
from fractune_core.fleet.redis_names import SERVER_STREAM
from fractune_core.fleet.signed_messages import Refused, open_dated_work
from fractune_core.log_fields import log_fields
from fractune_workers.context import WorkerContext
from fractune_workers.meter import Meter
from fractune_workers.roles import Role

_log = logging.getLogger(__name__)
_installed: list[tuple[WorkerContext, Role]] = []
_ended: list[float] = []
"""when the last piece of work had ended"""
_in_hand: list[Work] = []
_told_to_stop: list[bool] = []


def install(context: WorkerContext, role: Role) -> None:
    """Make `role` the one of this process."""
    _installed[:] = [(context, role)]


def tell_to_stop() -> None:
    """Note that this process was told to stop. The work in its hands may still end, as long as it is let; what is cut
    off is handed back, and is no death. For a signal's handler: nothing here waits for the work.
    """
    _told_to_stop[:] = [True]
    for work in _in_hand:
        _installed[0][0].hand_back(work)


def handle(queue: str, job_id: str, message: str) -> None:
    """Do the work of a message that came over `queue`; what this fleet did not sign is refused, and forgotten."""
    context, role = _installed[0]
    try:
        work, queued_at = open_dated_work(context.secret, queue, job_id, message)
    except Refused as error:
        with log_fields(work=job_id):
            _log.warning("job %s on the queue %s is refused, and nothing of it was done: %s", job_id, queue, error)
        return
    about = log_fields(job=work["job"], work=work["work_id"])
    with about, tracing.span(work["do"], work.get("trace", ""), work["job"], **_traced(work)):
        context.counts.begin(work["do"], time.time() - queued_at)
        _do(context, role, work)


def _do(context: WorkerContext, role: Role, work: Work) -> None:
    """A worker that has lost its share or its Redis ends here, and the work is queued again."""
    start, waited_before_s = time.perf_counter(), context.core_locks.waited_s

    def spent() -> tuple[float, float]:
        """Seconds until now, and how many of them it waited for locks."""
        return time.perf_counter() - start, context.core_locks.waited_s - waited_before_s

    meter = context.meter()
    _in_hand[:] = [work]
    if _told_to_stop:
        context.hand_back(work)
    try:
        role.handle(work)
        told = work["do"], *spent(), start - (_ended or [start])[0]
        _log.info("%s took %.2f s, %.2f s of it waiting for locks; before it, %.2f s without work", *told)
    except (redis.ConnectionError, redis.TimeoutError) as error:
        end(RedisGone(f"Redis went away ({error})"))
    except redis.OutOfMemoryError as error:
        end(RedisGone(f"Redis is out of memory ({error}); give it more (maxmemory), then start this worker again"))
    except ShareUnavailable as error:
        context.hand_back(work)
        end(error)
    except FractuneError as error:
        _report(context, work, error, meter)
    except Exception as error:  # noqa: BLE001  whatever it is, the server must be told
        _log.exception("%s failed", work["do"])
        _report(context, work, FractuneError(f"{type(error).__name__}: {error}"), meter)
    finally:
        _in_hand.clear()
        context.counts.end(work["do"], *spent())
        _ended[:] = [time.perf_counter()]


def _traced(work: Any) -> dict[str, str | int]:
    """What the span of a piece of work says about it."""
    about: dict[str, str | int] = {"work": work["work_id"]}
    if "operator" in work:
        about["operator"] = work["operator"]["name"]
    if "share" in work or "shares" in work:
        about["share"] = work["share"] if "share" in work else ",".join(work["shares"])
    counted = next((work[name] for name in ("candidates", "artifacts") if name in work), None)
    if counted is not None or "count" in work:
        about["candidates"] = work["count"] if counted is None else len(counted)
    return about


def end(error: FractuneError) -> NoReturn:
    """End at once, so that RQ does not take the work for done: it is queued again once this worker is found dead."""
    sys.stderr.write(f"fractune: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


def _report(context: WorkerContext, work: Any, error: FractuneError, meter: Meter) -> None:
    event: WorkFailed = {
        "event": "work_failed",
        "job": work["job"],
        "do": work["do"],
        "error": type(error).__name__,
        "message": str(error),
    }
    if "round_id" in work:
        event["round_id"] = work["round_id"]
    transaction = context.transaction(work, meter)
    transaction.event(SERVER_STREAM, event)
    transaction.send()
