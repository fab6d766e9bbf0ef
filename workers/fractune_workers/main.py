"""One worker process: it gets ready, registers, and serves its queue until it is stopped."""

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from fractune_core import __version__, tracing
from fractune_core.analysis.noise import DEFAULT_MARGIN
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.fleet.messages import WorkerInfo
from fractune_core.fleet.options import RoleName, WorkerOptions
from fractune_core.fleet.redis_names import GREETING_KEY, PROTOCOL
from fractune_core.fleet.redis_state import FleetFacts, check_clock, drop_entry, fleet_facts, no_redis, put_entry
from fractune_core.fleet.signed_messages import Unsigned, check_greeting, seal_worker
from fractune_core.host.sandbox import hide_memory
from fractune_core.share_kinds import CPU
from fractune_workers.context import WorkerContext
from fractune_workers.entry import ANSWER_TIMEOUT_S, REDIS_LOST, WorkHandler, WorkLoop, end, redis_lost
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.roles import Role
from fractune_workers.roles.build import Builder
from fractune_workers.roles.compile import Compiler
from fractune_workers.roles.measure import Measurer
from fractune_workers.roles.tune import Tuner
from fractune_workers.scratch_dir import open_scratch_dir

_RENEW_S = 1.0
_RENEW_TIMEOUT_S = 2.0
_REDIS_RETRIES = 6

_log = logging.getLogger(__name__)


def run_worker(options: WorkerOptions) -> None:
    """Serve until SIGTERM or SIGINT. The work in hand ends first; work that SIGKILL then cuts off is handed back.

    Raises BadRequest for options that do not fit, RedisGone when Redis does not answer, ShareUnavailable when the
    share cannot be entered or verified.
    """
    hide_memory()
    _stay_on(options)
    with tracing.traces("fractune-worker"), open_scratch_dir() as scratch_dir:
        context = _worker_context(options, scratch_dir)
        role = _role(options, context)
        try:
            role.start()
            handler = WorkHandler(context, role)
            with _registered(context, role, handler, options):
                role.warm_up()
                by_owner = options.role == RoleName.MEASURE  # another child for each owner
                loop = WorkLoop(context.name, context.redis, handler.queue, handler.handle, role, by_owner=by_owner)
                loop.stop_on_signals(handler.note_stop)
                loop.run()
        except REDIS_LOST as error:
            raise redis_lost(error) from error
        finally:
            role.stop()


def _stay_on(options: WorkerOptions) -> None:
    """Keep search and builds on their cores. A measurer keeps only its child there, from its start."""
    if not options.cores or options.measures_on_cpu:  # its confinement decides on cores
        return
    allowed = os.sched_getaffinity(0)
    if allowed.isdisjoint(options.cores):
        raise BadRequest(f"cores {options.cores}: this process may use {sorted(allowed)} only")
    if options.role != "measure":
        os.sched_setaffinity(0, options.cores)


def _worker_context(options: WorkerOptions, scratch_dir: Path) -> WorkerContext:
    # The loop waits on its queue for longer than redis-py's own limit of a few seconds.
    retry = Retry(ExponentialBackoff(), _REDIS_RETRIES)
    try:
        connection = redis.Redis.from_url(options.redis_url, retry=retry, socket_timeout=ANSWER_TIMEOUT_S)
        connection.ping()
    except (redis.RedisError, ValueError) as error:
        raise no_redis(options.redis_url, error) from error
    _check_fleet(fleet_facts(connection))
    _check_secret(connection, options.secret)
    core_locks = CoreLocks(options.lock_dir or default_lock_dir())
    cores = options.cores or sorted(os.sched_getaffinity(0))
    share = options.parsed_share
    if share is not None and share.device_kind == CPU and not options.cores:
        cores = core_locks.claim(cores, share.cores)
    return WorkerContext(
        name=options.name or f"{options.role}-{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        redis=connection,
        secret=options.secret,
        core_locks=core_locks,
        cores=cores,
        scratch_dir=scratch_dir,
    )


def _check_fleet(found: FleetFacts) -> None:
    """Raises BadRequest for a server that would not understand this worker, and ClockWrong."""
    if found.protocol is not None and found.protocol != str(PROTOCOL):
        raise BadRequest(
            f"this worker (fractune {__version__}) speaks protocol {PROTOCOL}, its server {found.protocol}; "
            "install the same version of fractune for both"
        )
    check_clock("this worker", found.now_s)


def _check_secret(connection: redis.Redis, secret: bytes) -> None:
    """Raises BadRequest when the secret is not the server's: this worker would refuse all work, and lose it."""
    greeting = cast("bytes | None", connection.get(GREETING_KEY))
    try:
        if greeting is not None:
            check_greeting(secret, greeting)
    except Unsigned as error:
        raise BadRequest(
            "this worker's secret is not its server's; give both the same, by --secret-file or FRACTUNE_SECRET"
        ) from error


def _role(options: WorkerOptions, context: WorkerContext) -> Role:
    share = options.parsed_share
    if share is not None:
        margin = options.margin or DEFAULT_MARGIN
        memory_bytes = options.max_model_memory_bytes
        return Measurer(context, share, margin, options.cache, memory_bytes, options.secret_files)
    if options.role == "compile":
        return Compiler(context, options.max_model_memory_bytes, options.secret_files)
    if options.role == "tune":
        return Tuner(context)
    return Builder(context, options.max_model_memory_bytes, options.secret_files)


@contextlib.contextmanager
def _registered(context: WorkerContext, role: Role, handler: WorkHandler, options: WorkerOptions) -> Iterator[None]:
    """Renew the entry of this worker every second, and remove it at the end."""
    info = role.describe(_info(context, options.role))
    ended = threading.Event()
    # A connection of its own that never waits for long: where the network has lost an answer, the next entry must
    # come while the worker still counts as alive.
    with redis.Redis.from_url(
        options.redis_url, retry=None, socket_timeout=_RENEW_TIMEOUT_S, socket_connect_timeout=_RENEW_TIMEOUT_S
    ) as line:
        thread = threading.Thread(target=_renew, args=(context, handler, line, info, ended), name="renew", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(redis.RedisError):
                drop_entry(line, context.name)


def _renew(
    context: WorkerContext, handler: WorkHandler, line: redis.Redis, info: WorkerInfo, ended: threading.Event
) -> None:
    """Renew until `ended`. A worker that no longer fits its fleet ends here, and hands back its work."""
    began_s = time.monotonic()
    while True:
        try:
            # Where the clock was set back, work that begins from now on began after this worker all the same.
            started_at = min(info.started_at, time.time() - (time.monotonic() - began_s))
            info = replace(info, started_at=started_at, waits_for=context.core_locks.awaited_holders())
            info = context.counts.describe(info)
            _check_fleet(put_entry(line, context.name, seal_worker(context.secret, info)))
        except redis.RedisError as error:
            _log.debug("the entry is not renewed: %s", error)
        except FractuneError as error:
            handler.note_stop()
            with contextlib.suppress(redis.RedisError):
                drop_entry(line, context.name)
            end(error)
        if ended.wait(_RENEW_S):
            return


def _info(context: WorkerContext, role_name: str) -> WorkerInfo:
    host = socket.gethostname()
    return WorkerInfo(
        name=context.name, role=role_name, host=host, pid=os.getpid(), started_at=time.time(), cores=context.cores
    )
