"""Large requests on a real channel: few are held at once, and small ones pass them."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

import grpc

from fractune_core.pb import fractune_pb2 as pb
from fractune_server.access.authenticator import REQUESTS_AT_ONCE, AccessInterceptor
from tests.support.processes.redis_process import wait_until

CALLS = 2 * REQUESTS_AT_ONCE
METHOD = "/fractune.v1.JobService/GetJob"


def test_few_large_requests_are_held_at_once_and_small_ones_pass_them() -> None:
    inside: list[str] = []
    go = threading.Event()

    def answer(request: Any, _context: grpc.ServicerContext) -> bytes:
        inside.append(request.name)
        assert len(request.name) == 1 or go.wait(30)
        return b"answer"

    method: Any = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=pb.GetJobRequest.FromString)
    server = grpc.server(futures.ThreadPoolExecutor(2 * CALLS), interceptors=[AccessInterceptor(None, 2 * CALLS)])
    handler: Any = type("Jobs", (grpc.GenericRpcHandler,), {"service": lambda *_: method})()
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    large, small = (pb.GetJobRequest(name="x" * size).SerializeToString() for size in (100_000, 1))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        untyped: Any = channel
        call = untyped.unary_unary(METHOD)
        begun = [call.future(large, timeout=30) for _ in range(REQUESTS_AT_ONCE // 2 - 1)]
        wait_until(lambda: len(inside) == len(begun))
        assert [call(small, timeout=30) for _ in range(CALLS)] == [b"answer"] * CALLS
        begun += [call.future(large, timeout=30) for _ in range(CALLS)]
        wait_until(lambda: len(inside) >= CALLS + REQUESTS_AT_ONCE // 2)
        assert sum(len(name) > 1 for name in inside) == REQUESTS_AT_ONCE // 2
        go.set()
        assert [each.result() for each in begun] == [b"answer"] * len(begun)
    server.stop(None).wait()
