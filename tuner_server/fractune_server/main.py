"""Runs the server: wiring, and an orderly end."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import grpc
import redis
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_reflection.v1alpha import reflection
from prometheus_client import ProcessCollector
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from fractune_core.errors import RedisGone
from fractune_core.jobs import JobState
from fractune_core.messages import GREETING_KEY, PROTOCOL, PROTOCOL_KEY
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_core.redis_url import no_redis
from fractune_core.signed_messages import seal_greeting
from fractune_core.tls_files import TlsFiles
from fractune_server.access.gate import Gate
from fractune_server.access.interceptor import AccessInterceptor
from fractune_server.access.listening import bind, bind_local, check_metrics_address, server_credentials
from fractune_server.engine.engine import Engine
from fractune_server.monitoring.collector import ServerCollector
from fractune_server.monitoring.endpoint import Endpoint
from fractune_server.monitoring.health import Health
from fractune_server.selection.model_match import Matcher
from fractune_server.services.bundles import BundleService
from fractune_server.services.call_counts import CallCounter
from fractune_server.services.errors import ErrorInterceptor
from fractune_server.services.fleet import FleetService
from fractune_server.services.jobs import MAX_WATCHERS, JobService
from fractune_server.services.log import LogService
from fractune_server.services.models import ModelService
from fractune_server.services.plans import PlanService
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.folder import StateFolder
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.context import MODEL_LIMIT_BYTES, ServerContext
from fractune_server.transport.outgoing import mark_cancelled
from fractune_server.transport.work_queues import WorkQueues

THREADS = 32
"""for calls that end by themselves, beside those that watch"""
_GRACE_S = 5.0
_INTERRUPTED = "interrupted: its stack ended; run the same command to go on"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOptions:
    """How to run a server."""

    listen: str
    """HOST:PORT (port 0 = any free one) or unix:PATH"""
    redis_url: str
    state_dir: Path
    """models, bundles and, unless `database_url` says otherwise, the database; locked while the server runs"""
    secret: bytes
    """the fleet's: bundles are signed with it"""
    database_url: str | None = None
    """SQLAlchemy's URL of another database than SQLite in the state folder"""
    insecure: bool = False
    """allow an address that other machines can reach, though calls carry neither encryption nor credentials"""
    tls: TlsFiles | None = None
    """serve with TLS, and ask every call for a token (or, with `client_ca`, every connection for a certificate)"""
    local_socket: Path | None = None
    """with TLS: serve at this Unix socket too, without credentials, for the user of this process"""
    upload_limit_bytes: int = MODEL_LIMIT_BYTES
    """of one model file"""
    resume: bool = True
    """go on with the jobs that an earlier server left open; otherwise they end as cancelled"""
    metrics: str | None = None
    """HOST:PORT for Prometheus and for probes of health, over HTTP; None = no such port"""
    ready_file: Path | None = None
    """the bound address is written here when the server serves"""


def run_server(options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises BadRequest for an address or TLS files that cannot be used, StateUnusable, RedisGone when Redis does not
    answer or stays away, and FractuneError when the engine has ended by itself.
    """
    credentials = server_credentials(options.listen, options.tls, insecure=options.insecure)
    check_metrics_address(options.metrics, insecure=options.insecure)
    # An event would not do: setting one in a signal's handler waits for ever where the handler has interrupted the
    # beginning of the wait for it.
    ends: SimpleQueue[str] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _: ends.put(signal.Signals(found).name))
    with StateFolder(options.state_dir) as folder:
        context = _open(options, folder.path)
        try:
            _serve(options, context, credentials, ends)
        except redis.RedisError as error:
            raise RedisGone(f"Redis takes nothing ({error}); mend that, then start the server again") from error
        finally:
            context.store.close()
            context.redis.close()


def make_server(
    context: ServerContext, stopping: threading.Event, health: health_pb2_grpc.HealthServicer, gate: Gate | None
) -> grpc.Server:
    """All services on a server that listens nowhere yet; `gate` as for AccessInterceptor."""
    server = grpc.server(
        futures.ThreadPoolExecutor(THREADS + MAX_WATCHERS, thread_name_prefix="grpc"),
        interceptors=[CallCounter(context.instruments), ErrorInterceptor(), AccessInterceptor(gate)],
        # Two servers must not share one port, and a call beyond the threads is refused rather than left hanging.
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)],
        maximum_concurrent_rpcs=THREADS + MAX_WATCHERS,
    )
    rpc.add_ModelServiceServicer_to_server(ModelService(context), server)
    rpc.add_JobServiceServicer_to_server(JobService(context, stopping), server)
    matcher = Matcher(context)
    rpc.add_LogServiceServicer_to_server(LogService(context, matcher), server)
    rpc.add_PlanServiceServicer_to_server(PlanService(matcher), server)
    rpc.add_BundleServiceServicer_to_server(BundleService(context), server)
    rpc.add_FleetServiceServicer_to_server(FleetService(context), server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [*_services(), HEALTH_SERVICE, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    return server


def _services() -> list[str]:
    return [service.full_name for service in pb.DESCRIPTOR.services_by_name.values()]


def _serve(
    options: ServerOptions,
    context: ServerContext,
    credentials: grpc.ServerCredentials | None,
    ends: SimpleQueue[str],
) -> None:
    """Until `ends` says why it is over."""
    context.redis.mset({PROTOCOL_KEY: PROTOCOL, GREETING_KEY: seal_greeting(context.secret)})
    WorkQueues(context.redis, context.secret).drop_foreign()
    if not options.resume:
        _cancel_open_jobs(context)
    stopping = threading.Event()
    engine = Engine(context, ended=lambda: ends.put("its engine's end"))
    health = Health(context, engine.silent_s)
    health.servicer.expect(_services())
    server = make_server(context, stopping, health.servicer, _gate(options, context))
    address = bind(server, options.listen, credentials)
    if options.local_socket is not None:
        bind_local(server, options.local_socket)
    with _seen_from_outside(options.metrics, context, health):
        engine.start()
        server.start()
        health.start()
        health.servicer.serve(_services())
        if options.ready_file is not None:
            announce(address, options.ready_file)
        _log.info("serving on %s", address)
        _log.info("ends after %s", ends.get())
        stopping.set()
        health.stop()
        health.servicer.enter_graceful_shutdown()  # clients that check are sent elsewhere
        context.notifier.announce()  # watchers look up, see that it is over, and end
        server.stop(_GRACE_S).wait()  # calls in hand may end: none of them starts anything new any more
        engine.stop()  # last, so that what the calls wrote is consistent when the store closes
    if engine.failure is not None:
        raise engine.failure


def _gate(options: ServerOptions, context: ServerContext) -> Gate | None:
    if options.tls is None:
        return None
    return Gate(context.store.tokens, token_needed=options.tls.client_ca is None)


@contextlib.contextmanager
def _seen_from_outside(address: str | None, context: ServerContext, health: Health) -> Iterator[None]:
    """Serve metrics and health over HTTP at `address`, if there is one, until the block ends. Raises BadRequest."""
    if address is None:
        yield
        return
    registry = context.instruments.registry
    registry.register(ServerCollector(context, health))
    ProcessCollector(registry=registry)
    endpoint = Endpoint(address, registry, health)
    try:
        endpoint.start()
        _log.info("metrics at http://%s/metrics", endpoint.address)
        yield
    finally:
        endpoint.stop()


def announce(address: str, ready_file: Path) -> None:
    """Write `address` so that a process that waits for the file never reads half of it."""
    draft = ready_file.with_name(f".{ready_file.name}.draft")
    draft.write_text(address)
    draft.replace(ready_file)


def _open(options: ServerOptions, folder: Path) -> ServerContext:
    # For about two seconds, so that calls outlive a Redis that is started again at once; the engine has the patience
    # for one that stays away longer.
    retry = Retry(ExponentialBackoff(cap=0.2, base=0.05), retries=10)
    try:
        connection = redis.Redis.from_url(options.redis_url, retry=retry)
        connection.ping()
    except (redis.RedisError, ValueError) as error:
        raise no_redis(options.redis_url, error) from error
    return ServerContext(
        store=Store(options.database_url or sqlite_url(folder)),
        redis=connection,
        files=BlobStore(folder),
        secret=options.secret,
        upload_limit_bytes=options.upload_limit_bytes,
    )


def _cancel_open_jobs(context: ServerContext) -> None:
    """What an earlier server left open ends, and the work that it left waiting goes."""
    WorkQueues(context.redis, context.secret).clear()
    for job in context.store.jobs.open_ids():
        context.store.jobs.end(job, JobState.CANCELLED, "JobCancelled", _INTERRUPTED)
        mark_cancelled(context.redis, job)
    for each in context.store.jobs.rounds():
        mark_cancelled(context.redis, each.round_id)
