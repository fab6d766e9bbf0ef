"""A few calls at a time, on a real channel; and handlers that are made once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from fractune_server.access.authenticator import Caller, set_caller
from fractune_server.services.interceptors import Around, ConcurrencyLimit, ErrorInterceptor, HandlerCache, Interceptor
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
