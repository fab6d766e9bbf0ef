"""Around every call, on a real channel: how many at a time, their counts, and the table of errors."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from fractune_core.errors import BadRequest, NotFound, RedisGone, error_from_name, error_kinds
from fractune_server.authenticator import Caller, set_caller
from fractune_server.instruments import Instruments
from fractune_server.services.interceptors import (
    STATUS_CODES,
    Around,
    CallCounter,
    ConcurrencyLimit,
    ErrorInterceptor,
    HandlerCache,
    Interceptor,
    code_text,
    translate,
)
from tests.support.processes.redis_process import wait_until

AT_ONCE, CALLS = 2, 6
"""of one caller; all callers together have twice as many at once"""
QUICK, WAITING, PROBE = (
    "/fractune.v1.JobService/GetJob",
    "/fractune.v1.LogService/MatchModel",
    "/grpc.health.v1.Health/Check",
)


class Calls:
    """Calls of any method, which stay until they are let go."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        """handlers, by method"""
        self.go = threading.Event()
        self._lock = threading.Lock()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        if details.method.startswith("/unknown"):
            return None
        self.made[details.method] += 1
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self._stay(details.method))

    def _stay(self, method: str) -> bytes:
        with self._lock:
            self.inside[method] += 1
        assert self.go.wait(30)
        return b"answer"


class Callers(Interceptor):
    """Each call says whose it is."""

    def _around(self, method: str, handler: Any) -> Around:  # noqa: ARG002  every call alike
        return self._named

    @contextmanager
    def _named(self, _request: Any, context: grpc.ServicerContext) -> Iterator[None]:
        set_caller(Caller(str(dict(context.invocation_metadata())["token"])))
        yield


@contextmanager
def serving(calls: Calls, *interceptors: grpc.ServerInterceptor) -> Iterator[Callable[..., Any]]:
    """Gives what begins a call, by method and the caller's token."""
    server = grpc.server(futures.ThreadPoolExecutor(4 * CALLS), interceptors=[Callers(), *interceptors])
    handler: Any = type("Calls", (grpc.GenericRpcHandler,), {"service": lambda _, details: calls.service(details)})()
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        untyped: Any = channel
        yield lambda method, token="": untyped.unary_unary(method).future(b"", timeout=30, metadata=[("token", token)])
        calls.go.set()
    server.stop(None).wait()


def test_few_calls_run_at_once_and_all_come_to_their_turn() -> None:
    calls = Calls()
    with serving(calls, ConcurrencyLimit(2 * AT_ONCE)) as begin:
        answers = [begin(QUICK) for _ in range(CALLS)]
        wait_until(lambda: calls.inside[QUICK] == AT_ONCE)
        # Whoever waits for a worker, and probes of health, wait for no place.
        answers += [begin(method) for method in (WAITING, PROBE) for _ in range(CALLS)]
        wait_until(lambda: calls.inside[WAITING] == calls.inside[PROBE] == CALLS)
        assert calls.inside[QUICK] == AT_ONCE
        # Another caller does not wait for those of this one.
        answers += [begin(QUICK, "another") for _ in range(CALLS)]
        wait_until(lambda: calls.inside[QUICK] == 2 * AT_ONCE)
        calls.go.set()
        assert [answer.result() for answer in answers] == [b"answer"] * 4 * CALLS


class Contexts(Interceptor):
    """Keeps the server's side of every call."""

    def __init__(self) -> None:
        self.found: list[grpc.ServicerContext] = []

    def _around(self, method: str, handler: Any) -> Around:  # noqa: ARG002  every call alike
        return self._keep

    @contextmanager
    def _keep(self, _request: Any, context: grpc.ServicerContext) -> Iterator[None]:
        self.found.append(context)
        yield


def test_a_call_whose_caller_has_left_while_it_waited_is_not_served() -> None:
    calls, contexts = Calls(), Contexts()
    with serving(calls, ErrorInterceptor(), contexts, ConcurrencyLimit(2 * AT_ONCE)) as begin:
        served = [begin(QUICK) for _ in range(AT_ONCE)]
        wait_until(lambda: calls.inside[QUICK] == AT_ONCE)
        left = [begin(QUICK) for _ in range(CALLS)]
        wait_until(lambda: len(contexts.found) == AT_ONCE + CALLS)
        for call in left:
            call.cancel()
        wait_until(lambda: not any(context.is_active() for context in contexts.found[AT_ONCE:]))
        calls.go.set()
        assert [answer.result() for answer in [*served, begin(QUICK)]] == [b"answer"] * (AT_ONCE + 1)
    assert calls.inside[QUICK] == AT_ONCE + 1


def test_a_handler_is_made_once_for_each_method_that_there_is() -> None:
    calls, cache = Calls(), HandlerCache()
    calls.go.set()
    with serving(calls, cache) as begin:
        for _ in range(3):
            assert [begin(method).result() for method in (QUICK, WAITING)] == [b"answer"] * 2
            assert begin("/unknown/Method").exception().code() is grpc.StatusCode.UNIMPLEMENTED
    assert calls.made == {QUICK: 1, WAITING: 1}
    assert set(cache._handlers) == {QUICK, WAITING}


SERVICE = "made.up.Service"


class MadeUp:
    def __init__(self) -> None:
        self.watched = threading.Event()

    def ok(self, request: bytes, _: Any) -> bytes:
        return request

    def missing(self, _request: bytes, _: Any) -> bytes:
        raise NotFound("no such thing")

    def broken(self, _request: bytes, _: Any) -> bytes:
        raise ZeroDivisionError("a mistake")

    def three(self, request: bytes, _: Any) -> Iterator[bytes]:
        yield from [request] * 3

    def watch(self, request: bytes, context: Any) -> Iterator[bytes]:
        while context.is_active():
            yield request
            self.watched.set()


@pytest.fixture
def instruments() -> Instruments:
    return Instruments()


@pytest.fixture
def channel(instruments: Instruments) -> Iterator[grpc.Channel]:
    made_up = MadeUp()
    handlers: dict[str, Any] = {
        **{name: grpc.unary_unary_rpc_method_handler(getattr(made_up, name)) for name in ("ok", "missing", "broken")},
        **{name: grpc.unary_stream_rpc_method_handler(getattr(made_up, name)) for name in ("three", "watch")},
    }
    interceptors: list[grpc.ServerInterceptor] = [CallCounter(instruments), ErrorInterceptor()]
    server = grpc.server(futures.ThreadPoolExecutor(2), interceptors=interceptors)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(0).wait()


def handled(instruments: Instruments, method: str, code: str, kind: str = "unary") -> float | None:
    labels = {"grpc_type": kind, "grpc_service": SERVICE, "grpc_method": method, "grpc_code": code}
    return instruments.registry.get_sample_value("grpc_server_handled_total", labels)


@pytest.mark.parametrize(("method", "code"), [("ok", "OK"), ("missing", "NotFound"), ("broken", "Internal")])
def test_a_call_is_counted_by_its_code(channel: grpc.Channel, instruments: Instruments, method: str, code: str) -> None:
    call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
    for _ in range(2):
        try:
            call(b"x", timeout=10)
        except grpc.RpcError as error:
            assert code_text(error.code()) == code  # noqa: PT017  some of them end well
    wait_until(lambda: handled(instruments, method, code) == 2)
    labels = {"grpc_type": "unary", "grpc_service": SERVICE, "grpc_method": method}
    for name in ("grpc_server_started_total", "grpc_server_handling_seconds_count"):
        assert instruments.registry.get_sample_value(name, labels) == 2


def test_a_stream_is_one_call(channel: grpc.Channel, instruments: Instruments) -> None:
    call: Any = channel.unary_stream(f"/{SERVICE}/three")
    assert list(call(b"x", timeout=10)) == [b"x"] * 3
    wait_until(lambda: handled(instruments, "three", "OK", "server_stream") == 1)


def test_a_watcher_that_goes_away_is_told_from_an_end(channel: grpc.Channel, instruments: Instruments) -> None:
    call: Any = channel.unary_stream(f"/{SERVICE}/watch")
    stream = call(b"x")
    assert next(stream) == b"x"
    stream.cancel()
    wait_until(lambda: handled(instruments, "watch", "Canceled", "server_stream") == 1)


def test_codes_are_written_as_other_servers_write_them() -> None:
    codes = [grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert [code_text(code) for code in codes] == ["OK", "Canceled", "ResourceExhausted"]


def test_every_error_has_a_status_and_comes_back() -> None:
    for name, kind in error_kinds().items():
        assert kind.grpc_status in STATUS_CODES, name
        assert kind.exit_code > 0, name
        told = translate(kind("what is wrong"))
        assert told is not None, name
        back = error_from_name(type(told).__name__, str(told))
        assert (type(back), str(back)) == (kind, "what is wrong")


def test_redis_away_is_told_and_other_errors_are_not() -> None:
    assert isinstance(translate(redis.ConnectionError("refused")), RedisGone)
    assert isinstance(translate(redis.TimeoutError("slow")), RedisGone)
    assert translate(KeyError("mistake")) is None


@pytest.mark.parametrize("answers", [grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler])
def test_a_caller_that_goes_while_it_sends_is_no_mistake_of_the_servers(
    answers: Callable[..., grpc.RpcMethodHandler[Any, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun, sent = threading.Event(), queue.SimpleQueue[bytes | None]()

    def read(requests: Iterator[bytes], _context: grpc.ServicerContext) -> Any:
        for _ in requests:
            begun.set()
        return b""

    def read_and_answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield read(requests, context)

    streams = answers is grpc.stream_stream_rpc_method_handler
    methods = {"Read": answers(read_and_answer if streams else read)}
    address = f"unix:{tmp_path / 's'}"
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, interceptors=[ErrorInterceptor()])
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", methods)])
        server.add_insecure_port(address)
        server.start()
        with grpc.insecure_channel(address) as channel:
            method: Any = channel.stream_stream("/test/Read")
            sent.put(b"first")
            call = method(iter(sent.get, None), timeout=60)
            assert begun.wait(60)
            call.cancel()
            sent.put(None)
        server.stop(None).wait()
    assert not caplog.records


class Request:
    """A request that can be watched."""


def test_a_refused_request_is_freed_at_once(tmp_path: Path) -> None:
    """Without the garbage collector, which may come much later."""
    seen: list[weakref.ref[Request]] = []

    def read(_: bytes) -> Request:
        request = Request()
        seen.append(weakref.ref(request))
        return request

    def refuse(request: Request, _context: grpc.ServicerContext) -> bytes:
        raise BadRequest(f"{type(request).__name__} is wrong")

    address = f"unix:{tmp_path / 's'}"
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, interceptors=[ErrorInterceptor()])
        methods: dict[str, Any] = {"Read": grpc.unary_unary_rpc_method_handler(refuse, request_deserializer=read)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", methods)])
        server.add_insecure_port(address)
        server.start()
        gc.disable()
        try:
            with grpc.insecure_channel(address) as channel:
                method: Any = channel.unary_unary("/test/Read")
                with pytest.raises(grpc.RpcError, match="Request is wrong"):
                    method(b"", timeout=60)
            wait_until(lambda: [each() for each in seen] == [None])
        finally:
            gc.enable()
        server.stop(None).wait()
