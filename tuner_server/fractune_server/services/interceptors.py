"""Interceptors of every call: metrics, errors as status codes, a limit on concurrent calls, and the audit.

The audit has one line of JSON a call: who called what, about which object, and how it ended. A line that cannot be
written never fails the call: the log says so, and a metric counts it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import redis
from google.protobuf import descriptor_pool

from fractune_core.errors import BadRequest, FractuneError, RedisGone, ServerUnreachable
from fractune_core.names import Collection
from fractune_core.tracing import log_fields
from fractune_server.authenticator import UNKNOWN, Attempts, Caller, Places, address_of, caller, set_caller
from fractune_server.instruments import Instruments

ERROR_METADATA = "fractune-error"

STATUS_CODES = {code.name: code for code in grpc.StatusCode}
"""by name, as `FractuneError.grpc_status` names them"""
CALLS_AT_ONCE = 4
_WAITING = ("MatchModel", "TabulateModel", "MakePlan")
"""methods whose answer may wait for a worker that reads the model"""
_TYPES = {
    (False, False): "unary",
    (True, False): "client_stream",
    (False, True): "server_stream",
    (True, True): "bidi_stream",
}
"""type of a method in gRPC's metrics, by whether its caller and its server send streams"""

_log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Around: TypeAlias = Callable[[Any, grpc.ServicerContext], AbstractContextManager[None]]
"""makes the context that a call runs in, from its request and gRPC's context"""


class Interceptor(grpc.ServerInterceptor):
    """Runs each call of a method in the context that `_around` returns; None leaves the method as it is."""

    def _around(self, method: str, handler: Any) -> Around | None:
        raise NotImplementedError

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler: Any = continuation(handler_call_details)
        around = None if handler is None else self._around(handler_call_details.method, handler)
        if around is None:
            return handler  # type: ignore[no-any-return]
        sides = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if streams else "unary" for streams in sides)
        inner = getattr(handler, kind)

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            with around(request, context):
                return inner(request, context)

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with around(request, context):
                yield from inner(request, context)

        make: Callable[..., Handler] = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            stream if handler.response_streaming else call,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class HandlerCache(grpc.ServerInterceptor):
    """Makes the handler of each method once: gRPC for Python asks all interceptors for it again at every call.

    It comes before all other interceptors. Their handlers may depend on the method, and on nothing else of the call.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        found = self._handlers.get(method) or continuation(handler_call_details)
        if found is not None:  # a method that does not exist is not kept: strangers could fill the memory
            self._handlers[method] = found
        return found


class CallCounter(Interceptor):
    """Counts and times the calls, under the usual names of gRPC's metrics. Unknown methods are not counted.

    It stands around ErrorInterceptor, so that it sees the status codes.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments

    def _around(self, method: str, handler: Any) -> Around:
        _, service, name = method.split("/")
        labels = (_type_of(service, name, handler), service, name)
        return lambda _request, context: self._counting(labels, context)

    @contextmanager
    def _counting(self, labels: tuple[str, str, str], context: grpc.ServicerContext) -> Iterator[None]:
        began = time.perf_counter()
        self._instruments.calls_started.labels(*labels).inc()
        failed = True
        try:
            yield
            failed = False
        finally:
            self._instruments.calls_handled.labels(*labels, code_text(call_code(context, failed=failed))).inc()
            self._instruments.call_duration.labels(*labels).observe(time.perf_counter() - began)


class ErrorInterceptor(Interceptor):
    """Ends a call that raises with the error's status code, one line, and the error's name in the trailing metadata."""

    def _around(self, method: str, handler: Any) -> Around:
        return _aborting


class ConcurrencyLimit(Interceptor):
    """Lets few calls run at once, because threads of one interpreter only slow each other down.

    With a hundred calls at once most processor time went into switching threads. The engine, whose thread waits for
    the database and for Redis at every step, came last each time. One caller has at most half of the places, so that
    its costly calls do not keep the others waiting. The limit begins when the request is there. Calls
    that send or receive a stream are not limited, because they mostly wait for their caller or for a change.
    """

    def __init__(self, at_once: int = CALLS_AT_ONCE) -> None:
        self._places = Places(at_once, "calls", wait_s=None)

    def _around(self, method: str, handler: Any) -> Around | None:
        is_quick = method.startswith("/fractune.") and not method.endswith(_WAITING)  # health probes never wait
        return self._place if handler.unary_unary and is_quick else None

    @contextmanager
    def _place(self, _request: Any, context: grpc.ServicerContext) -> Iterator[None]:
        with self._places.place(caller().owner):
            if not context.is_active():  # its caller has left
                raise ServerUnreachable("the caller has left")
            yield


def translate(error: Exception) -> FractuneError | None:
    """The error to report to the caller; None for an error that is not meant for callers."""
    if isinstance(error, FractuneError):
        return error
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return RedisGone(f"Redis does not answer ({error}); try again when it is back")
    if isinstance(error, redis.OutOfMemoryError):
        return RedisGone(f"Redis is out of memory ({error}); try again when its operator has given it more")
    return None


@contextmanager
def _aborting(request: Any, context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError:  # the caller left while it was sending; gRPC handles its own error
        raise
    except NotImplementedError:  # gRPC's own services have methods that this server does not implement
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server has no such method")
    except Exception as error:
        reported = translate(error)
        if reported is None:
            if type(error) is Exception and not error.args:  # raised by `context.abort`
                raise
            with _job_fields(request):
                _log.exception("a call failed")
            reported = FractuneError(f"{type(error).__name__}: {error}; see the server's log")
        # A frame that keeps an error with its own frame in the traceback is a cycle: the request would stay in memory.
        kind, said, status = type(reported).__name__, str(reported), STATUS_CODES[reported.grpc_status]
        del reported
        context.set_trailing_metadata(((ERROR_METADATA, kind),))
        context.abort(status, said)


def _job_fields(request: Any) -> AbstractContextManager[None]:
    """Log lines of a call that names a job carry this job."""
    collection, _, identifier = str(getattr(request, "name", "")).partition("/")
    return log_fields(job=identifier) if collection == Collection.JOBS else nullcontext()


def call_code(context: Any, *, failed: bool) -> grpc.StatusCode:
    if not context.is_active():  # the caller has left, or its deadline is over
        return grpc.StatusCode.CANCELLED
    code: grpc.StatusCode | None = context.code()
    return code or (grpc.StatusCode.UNKNOWN if failed else grpc.StatusCode.OK)


def code_text(code: grpc.StatusCode) -> str:
    """The code as other gRPC servers write it in metrics: `NotFound`."""
    special = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}
    return special.get(code) or "".join(part.capitalize() for part in code.name.split("_"))


def _type_of(service: str, method: str, handler: Any) -> str:
    """From the definition of the method where there is one: AccessInterceptor serves single requests as streams."""
    try:
        found = descriptor_pool.Default().FindMethodByName(f"{service}.{method}")
    except KeyError:
        return _TYPES[handler.request_streaming, handler.response_streaming]
    return _TYPES[found.client_streaming, found.server_streaming]


FILE_BYTES = 32 << 20
FILES = 8
"""with the one that is written"""
_SERVICES = "/fractune."
_OBJECTS = ("name", "job", "model", "bundle", "namespace")
"""fields of requests and answers that name an object"""
_SHOWN = 200
_COMPLAIN_EVERY_S = 60.0


@dataclass
class _Entry:
    object: str = ""


_entry: ContextVar[_Entry] = ContextVar("audit")


class AuditFile(RotatingFileHandler):
    """Lines of JSON in a file of at most FILE_BYTES; FILES - 1 older ones stay as `FILE.1` and so on."""

    def __init__(self, path: Path, instruments: Instruments) -> None:
        """Raises BadRequest if the file cannot be written."""
        try:
            super().__init__(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
        except OSError as error:
            raise BadRequest(f"--audit {path}: {error.strerror}; name a file that this user may write") from error
        self._instruments = instruments
        self._complained_s = -_COMPLAIN_EVERY_S

    def write(self, line: dict[str, Any]) -> None:
        self.handle(logging.makeLogRecord({"msg": json.dumps(line)}))

    def handleError(self, record: logging.LogRecord) -> None:
        del record
        self._instruments.audit_failures.inc()
        now = time.monotonic()
        if now - self._complained_s >= _COMPLAIN_EVERY_S:
            self._complained_s = now
            _log.exception("the audit %s lacks calls: it cannot be written", self.baseFilename)


class AuditInterceptor(Interceptor):
    """Writes a line at the end of each call of fractune's services. It stands around ErrorInterceptor, as it tells how
    the call ended; `AuditedObject` adds the object. Strangers get a few lines by their address, so that they do not
    push others' out of the file.
    """

    def __init__(self, file: AuditFile) -> None:
        self._file = file
        self._strangers = Attempts()

    def _around(self, method: str, handler: Any) -> Around | None:
        del handler
        called = method.rpartition(".")[2]
        return (lambda _, context: self._audited(called, context)) if method.startswith(_SERVICES) else None

    @contextmanager
    def _audited(self, called: str, context: grpc.ServicerContext) -> Iterator[None]:
        entry, began, failed = _Entry(), time.time(), True
        _entry.set(entry)
        set_caller(UNKNOWN)
        try:
            yield
            failed = False
        finally:
            code = code_text(call_code(context, failed=failed))
            who = caller()
            if who is not UNKNOWN or self._is_noted(context.peer()):
                self._file.write(_line(called, who, entry.object, context.peer(), code, began))

    def _is_noted(self, peer: str) -> bool:
        if self._strangers.wait_s(peer):
            return False
        self._strangers.failed(peer)
        return True


class AuditedObject(grpc.ServerInterceptor):
    """Notes the object that the request or the answer names. It comes after AccessInterceptor, which reads requests."""

    def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        handler: Any = continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_SERVICES):
            return handler  # type: ignore[no-any-return]
        kind = "_".join(
            "stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)
        )
        inner = getattr(handler, kind)

        def begin(request: Any) -> _Entry:
            entry = _entry.get()
            entry.object = "" if handler.request_streaming else _object_of(request)
            return entry

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            entry = begin(request)
            answer = inner(request, context)
            entry.object = entry.object or _object_of(answer)
            return answer

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            begin(request)
            yield from inner(request, context)

        make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(  # type: ignore[no-any-return]
            stream if handler.response_streaming else call,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _object_of(message: Any) -> str:
    """The name of what a request or an answer is about; empty where it names none."""
    values = (getattr(message, field, "") for field in _OBJECTS)
    return next((value[:_SHOWN] for value in values if isinstance(value, str) and value), "")


def _line(called: str, who: Caller, about: str, peer: str, code: str, began: float) -> dict[str, Any]:
    is_known = who is not UNKNOWN
    return {
        "time": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
        "call": called,
        "token": who.token_name,
        "token_id": who.token_id,
        "tenant": who.reach.tenant if is_known else "",
        "scope": str(who.scope) if is_known else "",
        "address": address_of(peer),
        "object": about,
        "result": code,
        "took_s": round(time.time() - began, 3),
    }
