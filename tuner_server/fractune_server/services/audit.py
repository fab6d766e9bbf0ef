"""The audit: who called what, about which object, and how it ended. One line of JSON a call, without any content.

A line that cannot be written never fails the call: the log says so, and a metric counts it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import grpc

from fractune_core.errors import BadRequest
from fractune_server.access.authenticator import UNKNOWN, Attempts, Caller, address_of, caller, set_caller
from fractune_server.instruments import Instruments
from fractune_server.services.interceptors import Around, Handler, Interceptor, call_code, code_text

FILE_BYTES = 32 << 20
FILES = 8
"""with the one that is written"""
_SERVICES = "/fractune."
_OBJECTS = ("name", "job", "model", "bundle", "namespace")
"""fields of requests and answers that name an object"""
_SHOWN = 200
_COMPLAIN_EVERY_S = 60.0

_log = logging.getLogger(__name__)


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
