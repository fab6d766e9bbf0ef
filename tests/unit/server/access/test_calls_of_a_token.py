"""Calls that wait, on a real channel with tokens of a real store: one token leaves room for the others."""

from __future__ import annotations

import threading
from concurrent import futures
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from fractune_core.access.tokens import Quotas, Scope
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.access.authenticator import AccessInterceptor, Authenticator
from fractune_server.services.interceptors import ErrorInterceptor
from fractune_server.store.store import Store, sqlite_url
from tests.support.processes.redis_process import wait_until

AT_ONCE = 6
METHOD = "/fractune.v1.LogService/MatchModel"


def test_one_token_has_at_most_half_of_the_calls_and_others_still_get_in(tmp_path: Path) -> None:
    inside: list[str] = []
    go = threading.Event()

    def answer(request: Any, _context: grpc.ServicerContext) -> bytes:
        inside.append(request.model)
        assert go.wait(30)
        return b"answer"

    method: Any = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=pb.MatchModelRequest.FromString)
    handler: Any = type("Log", (grpc.GenericRpcHandler,), {"service": lambda *_: method})()
    with closing(Store(sqlite_url(tmp_path))) as store:
        authenticator = Authenticator(store.tokens, token_needed=False)
        tokens = [store.tokens.create(name, Scope.SUBMIT, None, Quotas()).text for name in ("greedy", "other")]
        server = grpc.server(
            futures.ThreadPoolExecutor(2 * AT_ONCE),
            interceptors=[ErrorInterceptor(), AccessInterceptor(authenticator, AT_ONCE)],
        )
        server.add_generic_rpc_handlers([handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            untyped: Any = channel

            def begin(model: str, *token: str) -> Any:
                request = pb.MatchModelRequest(model=model).SerializeToString()
                metadata = [("authorization", f"Bearer {each}") for each in token]
                return untyped.unary_unary(METHOD).future(request, timeout=30, metadata=metadata)

            begun = [begin("greedy", tokens[0]) for _ in range(AT_ONCE // 2)]
            wait_until(lambda: len(inside) == AT_ONCE // 2)
            with pytest.raises(grpc.RpcError, match="has as many calls as it can hold; try again") as refused:
                begin("greedy", tokens[0]).result()
            assert cast("grpc.Call", refused.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            begun += [begin("other", tokens[1]) for _ in range(AT_ONCE // 2)]
            # Callers without a token may be many.
            begun += [begin("anybody") for _ in range(AT_ONCE)]
            wait_until(lambda: len(inside) == 2 * AT_ONCE)
            go.set()
            assert [each.result() for each in begun] == [b"answer"] * len(begun)
        server.stop(None).wait()
