"""How errors leave the server: a status code, one line, and the error's name in the trailing metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import grpc
import redis

from fractune_core.errors import FractuneError, RedisGone
from fractune_core.log_fields import log_fields
from fractune_core.names import Collection

ERROR_METADATA = "fractune-error"

STATUS_CODES = {code.name: code for code in grpc.StatusCode}
"""by name, as `FractuneError.grpc_status` names them"""

_log = logging.getLogger(__name__)


def translate(error: Exception) -> FractuneError | None:
    """The error to report to the caller; None for one that is not for callers."""
    if isinstance(error, FractuneError):
        return error
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return RedisGone(f"Redis does not answer ({error}); try again when it is back")
    if isinstance(error, redis.OutOfMemoryError):
        return RedisGone(f"Redis is out of memory ({error}); try again when its operator has given it more")
    return None


class ErrorInterceptor(grpc.ServerInterceptor):
    """Around every handler: whatever it raises ends the call with the right status."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        for kind in ("unary_unary", "stream_unary"):
            if getattr(handler, kind):
                make = getattr(grpc, f"{kind}_rpc_method_handler")
                return _rebuilt(handler, make, _guard(getattr(handler, kind)))
        for kind in ("unary_stream", "stream_stream"):
            if getattr(handler, kind):
                make = getattr(grpc, f"{kind}_rpc_method_handler")
                return _rebuilt(handler, make, _guard_stream(getattr(handler, kind)))
        return handler


def _rebuilt(
    handler: Any, make: Callable[..., grpc.RpcMethodHandler[Any, Any]], guarded: Callable[..., Any]
) -> grpc.RpcMethodHandler[Any, Any]:
    return make(
        guarded,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _guard(inner: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        with _aborting(request, context):
            return inner(request, context)

    return call


def _guard_stream(
    inner: Callable[[Any, grpc.ServicerContext], Iterator[Any]],
) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _aborting(request, context):
            yield from inner(request, context)

    return call


def _about(request: Any) -> AbstractContextManager[None]:
    """What is logged of a call that names a job is about that job."""
    collection, _, identifier = str(getattr(request, "name", "")).partition("/")
    return log_fields(job=identifier) if collection == Collection.JOBS else nullcontext()


@contextmanager
def _aborting(request: Any, context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError:  # of the requests' stream: the caller has gone while it was sending, and gRPC knows its own
        raise
    except NotImplementedError:  # as gRPC's own services have methods that none of ours fills
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server has no such method")
    except Exception as error:
        reported = translate(error)
        if reported is None:
            if type(error) is not Exception or error.args:  # `context.abort` raises a bare one; else it is our mistake
                with _about(request):
                    _log.exception("a call failed")
                reported = FractuneError(f"{type(error).__name__}: {error}; see the server's log")
            else:
                raise
        context.set_trailing_metadata(((ERROR_METADATA, type(reported).__name__),))
        context.abort(STATUS_CODES[reported.grpc_status], str(reported))
