"""Around every handler: who may not call gets nothing, before any of the request is read, and a call that goes on ends
when its token does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fractune_core.access.tokens import Scope
from fractune_core.errors import BadRequest
from fractune_server.access.gate import ANYBODY, Gate, caller, set_caller
from fractune_server.access.scopes import needed_scope

_OPEN_CALL_S = 10.0
"""a call that asks for no token has its answer by then, or is cut off"""


class AccessInterceptor(grpc.ServerInterceptor):
    """Asks `gate`. Without a gate every caller may do everything.

    A method of one request is served as one of a stream of requests, which is the same on the wire: gRPC would hold a
    thread until the request has come, also for a stranger who never sends it.
    """

    def __init__(self, gate: Gate | None) -> None:
        self._gate = gate

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = continuation(handler_call_details)
        if handler is None:
            return None
        path = handler_call_details.method
        needed = needed_scope(path)
        ways = ("stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming))
        inner = getattr(handler, "_".join(ways))

        def open_to(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            self._admit(path, needed, context)
            read = _read(requests, handler.request_deserializer, caller().check)
            return read if handler.request_streaming else _only(read, context, waits=needed is not None)

        def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            return inner(open_to(requests, context), context)

        def stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with closing(inner(open_to(requests, context), context)) as answers:
                check = caller().check
                for answer in answers:
                    check()
                    yield answer

        make: Any = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        return make(  # type: ignore[no-any-return]
            stream if handler.response_streaming else call,
            request_deserializer=None,
            response_serializer=handler.response_serializer,
        )

    def _admit(self, path: str, needed: Scope | None, context: grpc.ServicerContext) -> None:
        if self._gate is None or needed is None:
            set_caller(ANYBODY)
            return
        metadata = {str(key): value for key, value in context.invocation_metadata()}
        set_caller(self._gate.admit(path, needed, context.peer(), metadata))


def _read(requests: Iterator[bytes], parse: Callable[[bytes], Any], check: Callable[[], None]) -> Iterator[Any]:
    """The requests of a call. Here, since gRPC calls it an error of the server's own when bytes are no message.

    Raises BadRequest, and what `check` raises.
    """
    for request in requests:
        check()
        try:
            yield parse(request)
        except DecodeError as error:
            raise BadRequest(f"the request is no message of this method ({error})") from error


def _only(requests: Iterator[Any], context: grpc.ServicerContext, *, waits: bool) -> Any:
    """The request of a call that has one. Raises BadRequest for none."""
    if waits:
        request = next(requests, None)
    else:
        with ended_after(_OPEN_CALL_S, context):
            request = next(requests, None)
    if request is None:
        raise BadRequest("the call carries no request")
    return request


@contextmanager
def ended_after(secs: float, context: grpc.ServicerContext) -> Iterator[None]:
    """The call is cancelled when the block takes longer, even where it waits for a silent sender."""
    timer = threading.Timer(secs, context.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
