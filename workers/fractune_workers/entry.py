"""Where RQ comes in: the function named on the queue, and the role that this process plays."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import redis

from fractune_core.errors import FractuneError, RedisGone
from fractune_core.messages import SERVER_STREAM, Work, WorkFailed
from fractune_workers.context import WorkerContext
from fractune_workers.roles import Role

_log = logging.getLogger(__name__)
_playing: list[tuple[WorkerContext, Role]] = []


def install(context: WorkerContext, role: Role) -> None:
    """Make `role` the one that this process plays."""
    _playing[:] = [(context, role)]


def handle(work: Work) -> None:
    """Do one piece of work. A worker that has lost its share or its Redis ends here, and the work is given again."""
    context, role = _playing[0]
    start, waited_before_s = time.perf_counter(), context.core_locks.waited_s
    try:
        role.handle(work)
        waited_s = context.core_locks.waited_s - waited_before_s
        _log.info("%s took %.2f s, %.2f s of it at the gate", work["do"], time.perf_counter() - start, waited_s)
    except redis.ConnectionError as error:
        _end(RedisGone(f"Redis went away ({error})"))
    except FractuneError as error:
        if error.exit_code == 4:
            context.hand_back(work)
            _end(error)
        _report(context, work, error)
    except Exception as error:  # noqa: BLE001  whatever it is, the server must hear of it
        _log.exception("%s failed", work["do"])
        _report(context, work, FractuneError(f"{type(error).__name__}: {error}"))


def _end(error: FractuneError) -> None:
    """Leave at once, so that RQ does not take the work for done: whoever finds this worker dead gives it again."""
    sys.stderr.write(f"fractune: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


def _report(context: WorkerContext, work: Any, error: FractuneError) -> None:
    event: WorkFailed = {
        "event": "work_failed",
        "job": work["job"],
        "do": work["do"],
        "error": type(error).__name__,
        "message": str(error),
    }
    if "round_id" in work:
        event["round_id"] = work["round_id"]
    transaction = context.transaction(work)
    transaction.event(SERVER_STREAM, event)
    transaction.send()
