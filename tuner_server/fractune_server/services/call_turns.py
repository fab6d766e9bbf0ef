"""Few calls at a time: threads of one interpreter take turns anyhow, and each that waits for its turn costs the others.

With a hundred calls at once most of the processor's time went into handing over, and the engine, whose thread waits for
the database and for Redis at every step, came last each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc

AT_ONCE = 4
_WAITING = ("MatchModel", "TabulateModel", "MakePlan")
"""methods whose answer may wait for a worker that reads the model"""


def _is_quick(method: str) -> bool:
    """Of one of our own services, and such that it ends by itself: probes of health wait for nobody."""
    return method.startswith("/fractune.") and not method.endswith(_WAITING)


class CallTurns(grpc.ServerInterceptor):
    """Around what a call does once its request is there. Calls that send or receive a stream are not counted: what
    they wait for is their caller, or a change.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = threading.Semaphore(at_once)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = continuation(handler_call_details)
        if handler is None or not (handler.unary_unary and _is_quick(handler_call_details.method)):
            return handler  # type: ignore[no-any-return]

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            with self._places:
                return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )
