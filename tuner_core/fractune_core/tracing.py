"""Traces by OpenTelemetry, one for each job: from the server over its workers to the log.

Each line of the server's and the workers' logs names its job and its work (`log_fields`), for programs that read them.

Tracing needs the extra `trace` and OpenTelemetry's own environment variables. Otherwise nothing here does or imports
anything. A span's parent is text, W3C's `traceparent`, in the signed messages. The id of a job's span follows from the
job's name, so a restarted server continues the same trace.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider


_Work = TypeVar("_Work")

JOB, RECORD = "job", "record"
"""names of spans; other spans have the names of the kinds of work (`fractune_core.fleet.messages.WORK_KINDS`)"""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_FLUSH_S = 2.0
"""wait for a collector at the end of a process"""

_log = logging.getLogger(__name__)
_installed: list[_Tracer] = []
_current: ContextVar[str] = ContextVar("traceparent", default="")
_fields: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))


@contextlib.contextmanager
def traces(service: str, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Trace this process within the block, if the environment requests it; `service` is its name unless the environment
    has one. A request that cannot be met gets one line in the log.

    At the end, unsent spans are sent, if that takes no longer than a moment.
    """
    if _wanted(environ):
        _install(service, environ)
    try:
        yield
    finally:
        while _installed:
            _installed.pop().shut_down()


def _install(service: str, environ: Mapping[str, str]) -> None:
    protocol = _first(environ, _PROTOCOLS) or _PROTOCOL
    if protocol != _PROTOCOL:
        _log.warning("no traces: %s is '%s', and they are sent by %s alone", _PROTOCOLS[1], protocol, _PROTOCOL)
        return
    try:
        _installed[:] = [_Tracer(service)]
    except ImportError:
        _log.warning("no traces, though OpenTelemetry's variables ask for them: install 'fractune[trace]'")


@contextlib.contextmanager
def span(name: str, parent: str, job: str, **attributes: str | int) -> Iterator[None]:
    """A span of this thread for a job, until the block ends; without a `parent` it is a child of the job's span."""
    if not _installed:
        yield
        return
    with _installed[0].span(name, parent, {"job": job, **attributes}) as own:
        token = _current.set(own)
        try:
            yield
        finally:
            _current.reset(token)


def note(name: str, parent: str, job: str, began: float, ended: float, **attributes: str | int) -> None:
    """A finished span; times of day in seconds since 1970."""
    if _installed:
        _installed[0].note(name, parent, {"job": job, **attributes}, began, ended)


def note_job(job: str, began: float, ended: float) -> None:
    """The job's own span, sent when it has ended; times of day in seconds since 1970."""
    if _installed:
        _installed[0].note_job(job, began, ended)


def current(job: str) -> str:
    """Where what is caused now for a job belongs: to the span that this thread is in, else to the job; empty = nowhere,
    since nothing is traced.
    """
    return (_current.get() or _installed[0].of_job(job)) if _installed else ""


def with_parent(work: _Work) -> _Work:
    """A piece of work (`messages.AnyWork`) that names the span which caused it, where work is traced."""
    given: Any = work
    return cast(_Work, replace(given, traceparent=given.traceparent or current(given.job)))


def _wanted(environ: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces over OTLP. Unlike the SDK we send nothing anywhere unasked."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "")
    if exporters:
        return "otlp" in [name.strip() for name in exporters.split(",")]
    return bool(_first(environ, _ENDPOINTS))


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


class _Tracer:
    """OpenTelemetry's SDK, configured by its variables. Raises ImportError without the extra. Thread-safe."""

    def __init__(self, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create()  # whose name is `unknown_service...` where the environment names none
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": service}))
        self._ids = _Ids()
        # Not at the interpreter's exit, which would wait half a minute for a collector that is gone.
        self._provider: TracerProvider = TracerProvider(
            resource=resource, id_generator=cast(Any, self._ids), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("fractune")

    @contextlib.contextmanager
    def span(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> Iterator[str]:
        """Gives its own traceparent."""
        started = self._tracer.start_span(name, self._context(parent, attributes), attributes=_named(attributes))
        try:
            yield _traceparent(started.get_span_context())
        finally:
            started.end()

    def note(self, name: str, parent: str, attributes: Mapping[str, str | int], began: float, ended: float) -> None:
        context = self._context(parent, attributes)
        over = self._tracer.start_span(name, context, attributes=_named(attributes), start_time=_ns(began))
        over.end(_ns(ended))

    def note_job(self, job: str, began: float, ended: float) -> None:
        from opentelemetry.context import Context

        with self._ids.fixed(*_ids_of(job)):
            over = self._tracer.start_span(JOB, Context(), attributes=_named({"job": job}), start_time=_ns(began))
        over.end(_ns(ended))

    def of_job(self, job: str) -> str:
        """The traceparent of the job's own span, which shows whether the job is in the sample."""
        from opentelemetry.sdk.trace.sampling import Decision

        trace_id, span_id = _ids_of(job)
        sampled = self._provider.sampler.should_sample(None, trace_id, JOB).decision is Decision.RECORD_AND_SAMPLE
        return f"00-{trace_id:032x}-{span_id:016x}-{sampled:02x}"

    def shut_down(self) -> None:
        # The library would wait for as long as its export takes.
        ending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(_FLUSH_S)

    def _context(self, parent: str, attributes: Mapping[str, str | int]) -> Context:
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        found = parent or self.of_job(str(attributes["job"]))
        return TraceContextTextMapPropagator().extract({"traceparent": found}, Context())


class _Ids:
    """Makes up ids as OpenTelemetry's RandomIdGenerator does, but for a job's own span."""

    def __init__(self) -> None:
        self._fixed = threading.local()

    @contextlib.contextmanager
    def fixed(self, trace_id: int, span_id: int) -> Iterator[None]:
        """Within the block, this thread gets these."""
        self._fixed.ids = trace_id, span_id
        try:
            yield
        finally:
            del self._fixed.ids

    def generate_trace_id(self) -> int:
        return self._ids()[0]

    def generate_span_id(self) -> int:
        return self._ids()[1]

    def is_trace_id_random(self) -> bool:
        return True  # those of a job are a hash

    def _ids(self) -> tuple[int, int]:
        found: tuple[int, int] | None = getattr(self._fixed, "ids", None)
        return found or (int.from_bytes(os.urandom(16)), int.from_bytes(os.urandom(8)))


def _ids_of(job: str) -> tuple[int, int]:
    """Trace and span of a job."""
    digest = hashlib.sha256(job.encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def _traceparent(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags.sampled):02x}"


def _named(attributes: Mapping[str, str | int]) -> dict[str, str | int]:
    return {f"fractune.{name}": value for name, value in attributes.items()}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


@contextlib.contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Within the block, what is logged has these fields, beside those of the blocks around it."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def current_log_fields() -> Mapping[str, str]:
    """Those of the block that this thread is in."""
    return _fields.get()
