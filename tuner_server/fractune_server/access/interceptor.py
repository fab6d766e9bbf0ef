"""Checks the caller of every call before any of its request is read, and ends a long call when its token ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fractune_core.access.tokens import Scope
from fractune_core.errors import BadRequest
from fractune_server.access.authenticator import ANYBODY, Authenticator, caller, set_caller
from fractune_server.access.places import Places

_BY_SERVICE: dict[str, dict[str, Scope | None]] = {
    "fractune.v1.ModelService": {
        "UploadModel": Scope.SUBMIT,
        "GetUpload": Scope.SUBMIT,
        "GetModel": Scope.READ,
    },
    "fractune.v1.JobService": {
        "CreateJob": Scope.SUBMIT,
        "GetJob": Scope.READ,
        "ListJobs": Scope.READ,
        "CancelJob": Scope.SUBMIT,  # for the token's own jobs; the service requires OPERATE for the others
        "WatchJob": Scope.READ,
        "ListCosts": Scope.READ,  # the service shows the tokens of jobs to ADMIN only
    },
    "fractune.v1.LogService": {
        "ListRecords": Scope.READ,
        "ExportRecords": Scope.READ,
        "ImportRecords": Scope.ADMIN,  # builders compile imported workloads as they are
        "PruneRecords": Scope.OPERATE,
        "MatchModel": Scope.SUBMIT,  # a worker may ingest the model, as for TabulateModel
        "TabulateModel": Scope.SUBMIT,
        "ListUnreadable": Scope.READ,
        "ReplayUnreadable": Scope.OPERATE,
        "AddPair": Scope.SUBMIT,
        "ListPairs": Scope.READ,
        "AddRuntimeTimes": Scope.SUBMIT,
        "ListRuntimeTimes": Scope.READ,
    },
    "fractune.v1.PlanService": {"MakePlan": Scope.SUBMIT},
    "fractune.v1.BundleService": {"DownloadBundle": Scope.READ},
    "fractune.v1.FleetService": {"ListWorkers": Scope.READ, "ListShares": Scope.READ},
    # Watch holds a thread, so it needs a token.
    "grpc.health.v1.Health": {"Check": None, "List": Scope.READ, "Watch": Scope.READ},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Scope.READ},
}

SCOPES: dict[str, Scope | None] = {
    f"/{service}/{method}": scope for service, methods in _BY_SERVICE.items() for method, scope in methods.items()
}
"""by path of the call; None = open to everybody"""


def needed_scope(path: str) -> Scope | None:
    """A method that is not in the table needs the scope `admin`."""
    return SCOPES.get(path, Scope.ADMIN)


_OPEN_CALL_S = 10.0
"""time after which a silent call that needs no token is cancelled"""
REQUESTS_AT_ONCE = 16
"""requests that are arriving, or are large and not yet answered; each has at most MOST_MESSAGE_BYTES"""
STREAMS_AT_ONCE = 16
"""calls that send a stream, such as uploads; each has one message on its way"""
_SMALL_BYTES = 64 << 10
"""a request up to this size frees its place when it has arrived"""


class AccessInterceptor(grpc.ServerInterceptor):
    """Checks tokens by `authenticator`; without one every caller may do everything.

    A method with a single request is served as a method with a stream of requests, which looks the same on the wire.
    Otherwise gRPC would hold a thread until the request is there, also for a stranger who never sends it.
    """

    def __init__(self, authenticator: Authenticator | None, calls_at_once: int) -> None:
        """`calls_at_once`: the server has a thread for each; one token has at most half of them."""
        self._authenticator = authenticator
        self._calls = Places(calls_at_once, "calls", wait_s=0.0)
        self._requests = Places(REQUESTS_AT_ONCE, "large requests")
        self._streams = Places(STREAMS_AT_ONCE, "uploads and imports")

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

        def open_to(requests: Iterator[bytes], context: grpc.ServicerContext, held: ExitStack) -> Any:
            self._admit(path, needed, context)
            if token := caller().token_id:  # callers without one may be many
                held.enter_context(self._calls.place(token))
            places = self._streams if handler.request_streaming else self._requests
            place = held.enter_context(places.place(caller().token_id))
            read = _read(requests, handler.request_deserializer, caller().check)
            if handler.request_streaming:
                return read
            request = _only(read, context, waits=needed is not None)
            if request.ByteSize() <= _SMALL_BYTES:
                place.leave()
            return request

        def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            with ExitStack() as held:
                return inner(open_to(requests, context, held), context)

        def stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with ExitStack() as held, closing(inner(open_to(requests, context, held), context)) as answers:
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
        if self._authenticator is None or needed is None:
            set_caller(ANYBODY)
            return
        metadata = {str(key): value for key, value in context.invocation_metadata()}
        set_caller(self._authenticator.admit(path, needed, context.peer(), metadata))


def _read(requests: Iterator[bytes], parse: Callable[[bytes], Any], check: Callable[[], None]) -> Iterator[Any]:
    """The requests of a call. gRPC would report bytes that are not a message as an internal error of the server.

    Raises BadRequest, and what `check` raises.
    """
    for request in requests:
        check()
        try:
            message = parse(request)
        except DecodeError as error:
            raise BadRequest(f"the request is not a message of this method ({error})") from error
        del request  # its bytes are in the message now
        yield message


def _only(requests: Iterator[Any], context: grpc.ServicerContext, *, waits: bool) -> Any:
    """The request of a call that has a single one. Raises BadRequest if it is missing."""
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
    """Cancel the call if the block takes longer than `secs`, even while it waits for a silent sender."""
    timer = threading.Timer(secs, context.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
