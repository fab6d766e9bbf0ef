"""Checks the token and the scope of a call before its handler sees a byte, and names its caller.

A call also takes a place. Places bound what all callers together can make the server take.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from fractune_core.access import DEFAULT_REACH, UNIX, Quotas, Reach, Scope, TokenText
from fractune_core.errors import AccessRefused, BadRequest, FractuneError, QuotaExceeded, ScopeMissing, TooManyAttempts
from fractune_core.jobs import Priority
from fractune_core.names import place_owner
from fractune_server.store.tokens import StoredToken, TokenStore

WAIT_S = 20.0
"""the longest wait for a place"""


class Place:
    """A place of a caller; `leave` may be called more than once."""

    def __init__(self, *held: threading.Semaphore) -> None:
        self._held = list(held)

    def leave(self) -> None:
        while self._held:
            self._held.pop().release()


class Places:
    """Any thread may call. One caller has at most half of the places, so that it does not keep the others out."""

    def __init__(self, count: int, what: str, wait_s: float | None = WAIT_S) -> None:
        """`what` the places are for, in the error; `wait_s` is None to wait without end."""
        self._count, self._what, self._wait_s = count, what, wait_s
        self._all = threading.Semaphore(count)
        self._own: dict[str, threading.Semaphore] = {}

    @contextmanager
    def place(self, caller: str) -> Iterator[Place]:
        """Hold a place until the block ends, or until it is left. Raises QuotaExceeded if none becomes free in time."""
        own = self._own.get(caller) or self._own.setdefault(caller, threading.Semaphore(self._count // 2))
        self._take(own)
        place = Place(own)
        try:
            self._take(self._all)
            place = Place(own, self._all)
            yield place
        finally:
            place.leave()

    def _take(self, places: threading.Semaphore) -> None:
        if not places.acquire(timeout=self._wait_s):
            raise QuotaExceeded(f"the server has as many {self._what} as it can hold; try again when others have ended")


BURST = 10
"""wrong tokens that an address may send at once"""
FORGIVEN_AFTER_S = 1.0
"""after this time one wrong token is forgotten"""
_MAX_PEERS = 4096


class Attempts:
    """Counts wrong tokens by the caller's address. Any thread may call. Memory is bounded: the oldest address goes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clean_at: OrderedDict[str, float] = OrderedDict()
        """by address: when all of its wrong tokens are forgotten"""

    def wait_s(self, peer: str) -> float:
        """Seconds until calls of `peer`, as gRPC names it, are accepted again; 0 = now."""
        with self._lock:
            clean_at = self._clean_at.get(address_of(peer), 0.0)
        return max(clean_at - self._clock() - (BURST - 1) * FORGIVEN_AFTER_S, 0.0)

    def failed(self, peer: str) -> None:
        address = address_of(peer)
        with self._lock:
            now = self._clock()
            self._clean_at[address] = max(self._clean_at.pop(address, 0.0), now) + FORGIVEN_AFTER_S
            if len(self._clean_at) > _MAX_PEERS:
                self._clean_at.popitem(last=False)


def address_of(peer: str) -> str:
    """The address in `ipv4:192.0.2.1:5000`; the /64 in `ipv6:[2001:db8::1]:5000`, because one host may own it."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    if kind != "ipv6":
        return host or peer
    try:
        found = ipaddress.IPv6Address(host)
    except ValueError:
        return peer
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


_SCHEME = "Bearer "
_NO_TOKEN = "this server needs a token; ask its operator for one, and pass --token-file or FRACTUNE_TOKEN_FILE"  # noqa: S105
_WRONG = "this server does not know the token; ask its operator for one"

CHECK_EVERY_S = 2.5
"""how often a long call checks its token again; a watcher may check up to one second later"""

_log = logging.getLogger(__name__)


class _Check:
    """Calls `check` at most every CHECK_EVERY_S. One thread at a time."""

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check
        self._checked_at = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= CHECK_EVERY_S:
            self._checked_at = now
            self._check()


def _check_nothing() -> None:
    pass


@dataclass(frozen=True)
class Caller:
    """Who calls, and what the caller may do."""

    token_id: str = ""
    """empty = a caller who needed no token"""
    scope: Scope = Scope.ADMIN
    quotas: Quotas = field(default_factory=Quotas)
    max_priority: Priority = Priority.HIGH
    reach: Reach = DEFAULT_REACH
    token_name: str = ""
    check: Callable[[], None] = field(default=_check_nothing, compare=False)
    """for long calls: raises AccessRefused once the token is revoked or expired"""

    @property
    def tenant(self) -> str:
        """The owner of what the caller creates."""
        return self.reach.tenant

    @property
    def tenant_seen(self) -> str | None:
        """The tenant that the caller sees; None = all of them."""
        return None if self.reach.all_tenants or self.scope is Scope.ADMIN else self.tenant

    @property
    def owner(self) -> str:
        """As `place_owner`."""
        return place_owner(self.tenant, self.token_id)


ANYBODY = Caller()
UNKNOWN = Caller(scope=Scope.READ)
"""before a call's caller is known, and where it has shown no valid token"""
_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """The caller of the call that this thread answers."""
    return _caller.get()


def set_caller(found: Caller) -> None:
    """Set the caller before a call is answered. Nothing resets it, because every call sets its own."""
    _caller.set(found)


class Authenticator:
    """Checks the tokens of calls. Any thread may call."""

    def __init__(self, tokens: TokenStore, *, token_needed: bool, attempts: Attempts | None = None) -> None:
        """If `token_needed` is False, calls without a token may do everything."""
        self._tokens = tokens
        self._token_needed = token_needed
        self._attempts = attempts or Attempts()
        self._lines = Attempts()

    def admit(self, path: str, needed: Scope, peer: str, metadata: Mapping[str, str | bytes]) -> Caller:
        """Raises AccessRefused, ScopeMissing or TooManyAttempts."""
        if peer.startswith(UNIX):  # the permissions of the socket's file decide
            return ANYBODY
        try:
            return self._admit(needed, peer, str(metadata.get("authorization", "")))
        except FractuneError as error:
            if not self._lines.wait_s(peer):  # strangers must not fill the log's disk
                self._lines.failed(peer)
                _log.warning("refused %s from %s: %s", path, peer, error)
            raise

    def _admit(self, needed: Scope, peer: str, authorization: str) -> Caller:
        if not authorization:
            if self._token_needed:
                raise AccessRefused(_NO_TOKEN)
            return ANYBODY
        wait_s = self._attempts.wait_s(peer)
        if wait_s:
            raise TooManyAttempts(
                f"too many wrong tokens came from this address; try again in {wait_s:.1f} s with a valid token"
            )
        text = TokenText.parse(authorization.removeprefix(_SCHEME))
        token = None if text is None else self._tokens.find(text)
        if text is None or token is None:
            self._attempts.failed(peer)
            raise AccessRefused(_WRONG)
        _check_open(token)
        check = _Check(partial(self._check_again, text))
        found = Caller(token.token_id, token.scope, token.quotas, token.max_priority, token.reach, token.name, check)
        if not token.scope.includes(needed):
            set_caller(found)
            raise ScopeMissing(
                f"token {token.token_id} ({token.name}) has the scope {token.scope}, and this needs {needed}; "
                "ask the server's operator for such a token"
            )
        return found

    def _check_again(self, text: TokenText) -> None:
        token = self._tokens.find(text)
        if token is None:
            raise AccessRefused(_WRONG)
        _check_open(token)


def _check_open(token: StoredToken) -> None:
    """Raises AccessRefused for a token that is revoked or expired."""
    end = token.end(time.time())
    if end:
        raise AccessRefused(f"token {token.token_id} ({token.name}) is {end}; ask the server's operator for a new one")


_BY_SERVICE: dict[str, dict[str, Scope | None]] = {
    "fractune.v1.ModelService": {"UploadModel": Scope.SUBMIT, "GetUpload": Scope.SUBMIT, "GetModel": Scope.READ},
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
        "ListUnreadable": Scope.ADMIN,  # results of all tenants, as workers wrote them
        "ReplayUnreadable": Scope.ADMIN,
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
            if owner := caller().owner:  # callers without a token may be many
                held.enter_context(self._calls.place(owner))
            places = self._streams if handler.request_streaming else self._requests
            place = held.enter_context(places.place(owner))
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
