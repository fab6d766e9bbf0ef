"""The handler of each method is made once: gRPC for Python asks all interceptors for it again at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


class HandlerCache(grpc.ServerInterceptor):
    """Before all other interceptors; what they make may depend on the method, and on nothing else of the call."""

    def __init__(self) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        found = self._handlers.get(method) or continuation(handler_call_details)
        if found is not None:  # else any name that a stranger makes up would be kept
            self._handlers[method] = found
        return found
