"""The counts of calls, on a real gRPC server with made-up methods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from fractune_core.errors import NotFound
from fractune_server.instruments import Instruments
from fractune_server.services.interceptors import CallCounter, ErrorInterceptor, code_text
from tests.support.processes.redis_process import wait_until

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
