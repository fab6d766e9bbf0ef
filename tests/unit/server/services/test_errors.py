"""The table of errors is complete: every error has a real status code, a name on the wire, and comes back."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from fractune_core.errors import BadRequest, RedisGone, error_from_name, error_kinds
from fractune_server.services.interceptors import STATUS_CODES, ErrorInterceptor, translate
from tests.support.processes.redis_process import wait_until


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
