"""Runs the server: wiring, and an orderly shutdown."""

import contextlib
import gc
import logging
import os
import signal
import ssl
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from queue import Empty, SimpleQueue

import grpc
import redis
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_reflection.v1alpha import reflection
from prometheus_client import ProcessCollector
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from fractune_core import access, tracing
from fractune_core.errors import BadRequest, RedisGone
from fractune_core.fleet.options import ServerOptions
from fractune_core.fleet.redis_names import GREETING_KEY, PROTOCOL, PROTOCOL_KEY
from fractune_core.fleet.redis_state import check_clock, no_redis, redis_time_s
from fractune_core.fleet.signed_messages import seal_greeting
from fractune_core.host.private_folders import OWN_UMASK
from fractune_core.jobs import JobState
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_server.admin import note_audit
from fractune_server.authenticator import AccessInterceptor, Authenticator, caller
from fractune_server.engine.engine import Engine
from fractune_server.monitoring.health import Health
from fractune_server.monitoring.metrics import Endpoint, Metrics, ServerCollector
from fractune_server.selection.model_match import Matcher
from fractune_server.services import interceptors
from fractune_server.services.fleet import FleetService
from fractune_server.services.jobs import MAX_WATCHERS, JobFeeds, JobService
from fractune_server.services.log import LogService
from fractune_server.services.models import BundleService, ModelService
from fractune_server.services.plans import PlanService
from fractune_server.store.blob_files import BlobStore, StateFolder
from fractune_server.store.database.database import ServerLock, is_postgresql
from fractune_server.store.database.sight import Sight
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.context import CallContext, ServerContext, TenantView
from fractune_server.transport.work_queues import WorkQueues, mark_cancelled


def server_credentials(listen: str, tls: access.TlsFiles | None, *, insecure: bool) -> grpc.ServerCredentials | None:
    """None = plain text. Raises BadRequest for unusable files, and for an address that other machines can reach,
    unless TLS or `insecure` is given.
    """
    if tls is None:
        if not insecure and not access.is_local(listen):
            raise BadRequest(
                f"address {listen} can be reached from other machines, and calls carry no credentials; listen on "
                "127.0.0.1, pass --tls-cert and --tls-key (then calls need tokens), or pass --insecure"
            )
        return None
    if insecure:
        raise BadRequest("--insecure excludes TLS and tokens; leave out --insecure, or --tls-cert and --tls-key")
    if listen.startswith(access.UNIX):
        raise BadRequest(f"TLS is for HOST:PORT, and {listen} is a socket on this machine; leave --tls-cert out")
    cert, key = access.read_pair("--tls-cert", tls.cert, "--tls-key", tls.key)
    authority = access.read_authority("--client-ca", tls.client_ca) if tls.client_ca else None
    return grpc.ssl_server_credentials([(key, cert)], authority, require_client_auth=authority is not None)


def metrics_tls(address: str | None, tls: access.TlsFiles | None, *, insecure: bool) -> ssl.SSLContext | None:
    """TLS for the metrics port. None = plain HTTP without credentials: on loopback, or with `insecure`.

    `server_credentials` has checked the files in `tls`. Raises BadRequest if other machines can reach the address and
    `tls` is None.
    """
    if address is None or insecure or access.is_local(address):
        return None
    if tls is None:
        raise BadRequest(
            f"metrics address {address} can be reached from other machines, and needs no credentials; use one on "
            "127.0.0.1, pass --tls-cert and --tls-key (then metrics need a token, too), or pass --insecure"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert, tls.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def bind(server: grpc.Server, listen: str, credentials: grpc.ServerCredentials | None) -> str:
    """The address that clients can use. Raises BadRequest."""
    try:
        port = server.add_insecure_port(listen) if credentials is None else server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise BadRequest(f"cannot listen on {listen}: it is in use, or not an address of this machine") from error
    return listen if listen.startswith(access.UNIX) else f"{listen.rpartition(':')[0]}:{port}"


def bind_local(server: grpc.Server, path: Path) -> None:
    """Also serve at a Unix socket that only its user may open. Raises BadRequest."""
    bind(server, f"{access.UNIX}{path}", None)
    path.chmod(0o600)


THREADS = 32
"""threads for short calls, beside those of the watchers"""
_GRACE_S = 5.0
_LOOK_EVERY_S = 0.5
"""how often the server checks for signals, and for PostgreSQL's lock while another server has it"""
_LAST_TICK_S = 1.0
"""a server that has lost its lock notices it within this time: its engine looks at every tick"""
_INTERRUPTED = "interrupted: its stack ended; run the same command to continue"

_log = logging.getLogger(__name__)


def run_server(options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises BadRequest for an unusable address or TLS files, StateUnusable, RedisGone if Redis does not answer or stays
    away, ClockWrong, and FractuneError if the engine fails.
    """
    os.umask(OWN_UMASK)
    credentials = server_credentials(options.listen, options.tls, insecure=options.insecure)
    metrics_tls(options.metrics, options.tls, insecure=options.insecure)  # refuse the options before anything starts
    # Not a threading.Event: setting one in a signal handler can deadlock if the handler interrupts the event's wait.
    ends: SimpleQueue[str] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _: ends.put(signal.Signals(found).name))
    with tracing.traces("fractune-server"), contextlib.ExitStack() as held:
        lock = None
        if options.database_url is None or not is_postgresql(options.database_url):
            held.enter_context(StateFolder(options.state_dir))
        else:
            lock = held.enter_context(ServerLock(options.database_url))
            if not lock.take() and not _wait_for(lock, ends):
                return
        context = _open(options, lock)
        try:
            _serve(options, context, credentials, ends)
        except redis.RedisError as error:
            raise RedisGone(f"Redis rejects commands ({error}); fix it, then start the server again") from error
        finally:
            context.store.close()
            context.redis.close()


def make_server(
    context: ServerContext,
    stopping: threading.Event,
    health: health_pb2_grpc.HealthServicer,
    authenticator: Authenticator | None,
    audit: interceptors.AuditFile | None = None,
) -> grpc.Server:
    """All services on a server that does not listen yet; `authenticator` as for AccessInterceptor. `audit`: None
    = calls are not audited.
    """
    at_once = THREADS + MAX_WATCHERS
    audited = ([], []) if audit is None else ([interceptors.AuditInterceptor(audit)], [interceptors.AuditedObject()])
    server = grpc.server(
        futures.ThreadPoolExecutor(at_once, thread_name_prefix="grpc"),
        interceptors=[
            interceptors.HandlerCache(),
            interceptors.CallCounter(context.instruments),
            *audited[0],
            interceptors.ErrorInterceptor(),
            AccessInterceptor(authenticator, at_once),
            *audited[1],
            interceptors.ConcurrencyLimit(),
        ],
        # Two servers must not share a port. Calls beyond the number of threads are refused, not left hanging.
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", access.MOST_MESSAGE_BYTES),
            *access.SERVER_KEEPALIVE,
        ],
        maximum_concurrent_rpcs=at_once,
    )
    calls, feeds = call_context(context), JobFeeds(context.notifier, context.store.jobs.revisions)
    rpc.add_ModelServiceServicer_to_server(ModelService(calls), server)
    rpc.add_JobServiceServicer_to_server(JobService(calls, feeds, stopping), server)
    matcher = Matcher(calls)
    rpc.add_LogServiceServicer_to_server(LogService(calls, matcher), server)
    rpc.add_PlanServiceServicer_to_server(PlanService(calls.view, matcher), server)
    rpc.add_BundleServiceServicer_to_server(BundleService(calls), server)
    rpc.add_FleetServiceServicer_to_server(FleetService(calls), server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [*_services(), HEALTH_SERVICE, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    return server


def call_context(context: ServerContext) -> CallContext:
    """For handlers: they see what the caller of their call sees."""

    def view() -> TenantView:
        return context.view(Sight(caller().tenant_seen, caller().tenant))

    return CallContext(
        view,
        lambda: context.sees_fleet(caller().tenant_seen),
        context.redis,
        context.secret,
        context.upload_limit_bytes,
        context.notifier,
        context.model_ingests,
    )


def _services() -> list[str]:
    return [service.full_name for service in pb.DESCRIPTOR.services_by_name.values()]


def _serve(
    options: ServerOptions, context: ServerContext, credentials: grpc.ServerCredentials | None, ends: SimpleQueue[str]
) -> None:
    """Serve until `ends` holds a reason to end."""
    context.redis.mset({PROTOCOL_KEY: PROTOCOL, GREETING_KEY: seal_greeting(context.secret)})
    WorkQueues(context.redis, context.secret).drop_foreign()
    if not options.resume:
        _cancel_open_jobs(context)
    stopping = threading.Event()
    engine = Engine(context, ended=lambda: ends.put("its engine's end"))
    health = Health(context, engine.silent_s)
    health.servicer.expect(_services())
    authenticator = _authenticator(options, context)
    audit = None if options.audit is None else interceptors.AuditFile(options.audit, context.instruments)
    note_audit(options.state_dir, options.audit)
    server = make_server(context, stopping, health.servicer, authenticator, audit)
    address = bind(server, options.listen, credentials)
    if options.local_socket is not None:
        bind_local(server, options.local_socket)
    with _seen_from_outside(options, context, health, authenticator):
        gc.collect()
        gc.freeze()  # imported modules stay; later collections, which delay every call, skip them
        engine.start()
        server.start()
        health.start()
        health.servicer.serve(_services())
        if options.ready_file is not None:
            announce(address, options.ready_file)
        _log.info("serving on %s", address)
        # A signal that arrives just before the wait, or in another thread, does not interrupt it.
        while not _should_end(ends, _LOOK_EVERY_S):
            pass
        stopping.set()
        health.stop()
        health.servicer.enter_graceful_shutdown()  # clients that check health go elsewhere
        context.notifier.announce()  # watchers wake up and end
        server.stop(_GRACE_S).wait()  # calls in progress may finish
        engine.stop()  # last, so that everything that calls wrote is consistent when the store closes
    if engine.failure is not None:
        raise engine.failure


def _authenticator(options: ServerOptions, context: ServerContext) -> Authenticator | None:
    if options.tls is None:
        return None
    return Authenticator(context.store.tokens, token_needed=options.tls.client_ca is None)


@contextlib.contextmanager
def _seen_from_outside(
    options: ServerOptions, context: ServerContext, health: Health, authenticator: Authenticator | None
) -> Iterator[None]:
    """Serve metrics and health over HTTP until the block ends, if requested. Raises BadRequest."""
    if options.metrics is None:
        yield
        return
    registry = context.instruments.registry
    registry.register(ServerCollector(context, health))
    ProcessCollector(registry=registry)
    tls = metrics_tls(options.metrics, options.tls, insecure=options.insecure)
    metrics = Metrics(registry, context)
    endpoint = Endpoint(options.metrics, metrics, health, tls, authenticator if tls is not None else None)
    try:
        endpoint.start()
        _log.info("metrics at %s/metrics", endpoint.url)
        yield
    finally:
        endpoint.stop()


def _wait_for(lock: ServerLock, ends: SimpleQueue[str]) -> bool:
    """Take the lock as soon as the other server releases it. False if this server is to end before."""
    _log.info("another server works on database %s; waiting to take its place", lock.where)
    while not lock.take():
        if _should_end(ends, _LOOK_EVERY_S):
            return False
    _log.info("the other server is gone; taking its place")
    return not _should_end(ends, _LAST_TICK_S)


def _should_end(ends: SimpleQueue[str], within_s: float) -> bool:
    try:
        _log.info("ends after %s", ends.get(timeout=within_s))
    except Empty:
        return False
    return True


def announce(address: str, ready_file: Path) -> None:
    """Write `address` in one step: a process that waits for the file never reads half of it."""
    draft = ready_file.with_name(f".{ready_file.name}.draft")
    draft.unlink(missing_ok=True)
    with draft.open("x", encoding="utf-8") as file:  # in a folder of others it may be a link
        file.write(address)
    draft.replace(ready_file)


def _open(options: ServerOptions, lock: ServerLock | None) -> ServerContext:
    # About two seconds, so that calls survive a quick restart of Redis. The engine waits longer.
    retry = Retry(ExponentialBackoff(cap=0.2, base=0.05), retries=10)
    try:
        connection = redis.Redis.from_url(options.redis_url, retry=retry)
        connection.ping()
    except (redis.RedisError, ValueError) as error:
        raise no_redis(options.redis_url, error) from error
    check_clock("this server", redis_time_s(connection.time()))
    return ServerContext(
        store=Store(options.database_url or sqlite_url(options.state_dir), lock),
        redis=connection,
        files=BlobStore(options.state_dir),
        secret=options.secret,
        upload_limit_bytes=options.upload_limit_bytes,
    )


def _cancel_open_jobs(context: ServerContext) -> None:
    """End the open jobs of an earlier server, and drop its waiting work."""
    WorkQueues(context.redis, context.secret).clear()
    for job in context.store.jobs.open_ids():
        context.store.jobs.end(job, JobState.CANCELLED, "JobCancelled", _INTERRUPTED)
        mark_cancelled(context.redis, job)
    for each in context.store.jobs.rounds():
        mark_cancelled(context.redis, each.round_id)
