"""Counts the calls and times them, under the names that gRPC's metrics have with Prometheus everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pool

from fractune_server.counts.instruments import Instruments

_KINDS = ("unary_unary", "stream_unary", "unary_stream", "stream_stream")
_TYPES = {
    (False, False): "unary",
    (True, False): "client_stream",
    (False, True): "server_stream",
    (True, True): "bidi_stream",
}
"""what gRPC's metrics call a method, by whether its caller and its server send streams"""


class CallCounter(grpc.ServerInterceptor):
    """Around every handler, and around what turns its errors into codes. Methods that do not exist are not counted."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        kind = next((kind for kind in _KINDS if getattr(handler, kind, None)), None)
        if handler is None or kind is None:
            return handler
        _, service, method = handler_call_details.method.split("/")
        counted = self._stream if kind.endswith("_stream") else self._unary
        make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            counted(getattr(handler, kind), (_type_of(service, method, handler), service, method)),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, inner: Callable[..., Any], labels: tuple[str, str, str]) -> Callable[..., Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            with self._counting(labels, context):
                return inner(request, context)

        return call

    def _stream(self, inner: Callable[..., Iterator[Any]], labels: tuple[str, str, str]) -> Callable[..., Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._counting(labels, context):
                yield from inner(request, context)

        return call

    @contextmanager
    def _counting(self, labels: tuple[str, str, str], context: grpc.ServicerContext) -> Iterator[None]:
        began = time.perf_counter()
        self._instruments.calls_started.labels(*labels).inc()
        failed = True
        try:
            yield
            failed = False
        finally:
            self._instruments.calls_handled.labels(*labels, code_text(_code(context, failed=failed))).inc()
            self._instruments.call_duration.labels(*labels).observe(time.perf_counter() - began)


def _code(context: Any, *, failed: bool) -> grpc.StatusCode:
    if not context.is_active():  # the caller has gone, or has waited long enough
        return grpc.StatusCode.CANCELLED
    code: grpc.StatusCode | None = context.code()
    return code or (grpc.StatusCode.UNKNOWN if failed else grpc.StatusCode.OK)


def code_text(code: grpc.StatusCode) -> str:
    """As the metrics of other gRPC servers write it: `NotFound`."""
    special = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}
    return special.get(code) or "".join(part.capitalize() for part in code.name.split("_"))


def _type_of(service: str, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> str:
    """By its definition, where there is one: the handler may serve one request as a stream of them."""
    try:
        found = descriptor_pool.Default().FindMethodByName(f"{service}.{method}")
    except KeyError:
        return _TYPES[handler.request_streaming, handler.response_streaming]
    return _TYPES[found.client_streaming, found.server_streaming]
