"""Who passes the authenticator, how many wrong tokens an address has, and how many calls a token."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fractune_core.access import Quotas, Scope, TokenText
from fractune_core.errors import AccessRefused, ScopeMissing, TooManyAttempts
from fractune_core.jobs import Priority
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.authenticator import (
    BURST,
    REQUESTS_AT_ONCE,
    SCOPES,
    AccessInterceptor,
    Attempts,
    Authenticator,
    Caller,
    needed_scope,
)
from fractune_server.services.interceptors import ErrorInterceptor
from fractune_server.store.store import Store, sqlite_url
from tests.support.processes.redis_process import wait_until

PEER = "ipv4:192.0.2.1:5000"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(sqlite_url(tmp_path_factory.mktemp("state")))
    yield made
    made.close()


@pytest.fixture
def authenticator(store: Store) -> Authenticator:
    return Authenticator(store.tokens, token_needed=True, attempts=Attempts(lambda: 0.0))


def admit(
    authenticator: Authenticator, token: TokenText | str | None, needed: Scope = Scope.READ, peer: str = PEER
) -> Caller:
    text = token.text if isinstance(token, TokenText) else token
    return authenticator.admit("/a/b", needed, peer, {} if text is None else {"authorization": f"Bearer {text}"})


def test_a_token_passes_with_its_scope_and_quotas(authenticator: Authenticator, store: Store) -> None:
    made = store.tokens.create("ci", Scope.SUBMIT, time.time() + 60, Quotas(open_jobs=3))
    assert admit(authenticator, made, Scope.SUBMIT) == Caller(
        made.token_id, Scope.SUBMIT, Quotas(open_jobs=3), Priority.NORMAL, token_name="ci"
    )
    with pytest.raises(ScopeMissing, match=rf"token {made.token_id} \(ci\) has the scope submit, .* needs operate"):
        admit(authenticator, made, Scope.OPERATE)


def test_expired_and_revoked_ones_do_not(authenticator: Authenticator, store: Store) -> None:
    old = store.tokens.create("old", Scope.ADMIN, time.time() - 1, Quotas())
    with pytest.raises(AccessRefused, match="is expired"):
        admit(authenticator, old)
    made = store.tokens.create("gone", Scope.ADMIN, None, Quotas())
    assert admit(authenticator, made).scope is Scope.ADMIN
    assert store.tokens.revoke(made.token_id)
    with pytest.raises(AccessRefused, match="is revoked"):
        admit(authenticator, made)


def test_wrong_and_missing_ones_do_not_and_nothing_tells_which_id_exists(
    authenticator: Authenticator, store: Store
) -> None:
    made = store.tokens.create("ci", Scope.ADMIN, None, Quotas())
    said = set()
    for wrong in (
        f"fractune_{made.token_id}_{'0' * 64}",
        f"fractune_{'0' * 12}_{made.secret}",
        "guess",
        made.text[:-1],
    ):
        with pytest.raises(AccessRefused) as refused:
            admit(authenticator, wrong)
        said.add(str(refused.value))
    assert len(said) == 1
    with pytest.raises(AccessRefused, match="needs a token"):
        admit(authenticator, None)


def test_wrong_ones_are_slowed_by_address_and_missing_ones_are_not(authenticator: Authenticator, store: Store) -> None:
    made = store.tokens.create("ci", Scope.ADMIN, None, Quotas())
    for _ in range(2 * BURST):
        with pytest.raises(AccessRefused, match="needs a token"):
            admit(authenticator, None)
    for _ in range(BURST):
        with pytest.raises(AccessRefused, match="does not know"):
            admit(authenticator, "guess")
    with pytest.raises(TooManyAttempts, match=r"try again in \d\.\d s"):
        admit(authenticator, made)
    assert admit(authenticator, made, peer="ipv4:192.0.2.2:5000").token_id == made.token_id


def test_a_certificate_in_place_of_a_token(store: Store) -> None:
    authenticator = Authenticator(store.tokens, token_needed=False)
    assert admit(authenticator, None, Scope.ADMIN) == Caller()
    made = store.tokens.create("ci", Scope.READ, None, Quotas())
    with pytest.raises(ScopeMissing):
        admit(authenticator, made, Scope.SUBMIT)
    with pytest.raises(AccessRefused):
        admit(authenticator, "guess")


def test_a_socket_of_this_machine_asks_for_nothing(authenticator: Authenticator) -> None:
    assert admit(authenticator, None, Scope.ADMIN, peer="unix:") == Caller()


def test_a_stranger_does_not_fill_the_log(authenticator: Authenticator, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10 * BURST):
        with pytest.raises(AccessRefused):
            admit(authenticator, None)
    assert BURST <= len(caplog.records) <= 2 * BURST


def test_refusals_are_logged_without_secrets(
    authenticator: Authenticator, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    made = store.tokens.create("ci", Scope.READ, None, Quotas())
    with caplog.at_level(logging.DEBUG):
        for wrong in (made, TokenText(made.token_id, "f" * 64)):
            with pytest.raises(AccessRefused):
                admit(authenticator, wrong, Scope.ADMIN)
    assert "refused /a/b from ipv4:192.0.2.1:5000" in caplog.text
    assert made.secret not in caplog.text
    assert "f" * 64 not in caplog.text
    assert made.secret not in repr(made)


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


def paths(file: Any) -> set[str]:
    services = file.services_by_name.values()
    return {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}


def test_every_method_has_an_entry() -> None:
    served = paths(pb.DESCRIPTOR) | paths(health_pb2.DESCRIPTOR) | paths(reflection_pb2.DESCRIPTOR)
    assert set(SCOPES) == served


def test_the_health_check_alone_is_open() -> None:
    assert [path for path, scope in SCOPES.items() if scope is None] == ["/grpc.health.v1.Health/Check"]


def test_what_each_scope_opens() -> None:
    """As docs/security.md has it; what is not named here shows something, and is for `read`."""
    beyond_reading = {
        Scope.SUBMIT: {
            *("UploadModel", "GetUpload", "CreateJob", "CancelJob"),
            *("MatchModel", "TabulateModel", "MakePlan", "AddPair", "AddRuntimeTimes"),
        },
        Scope.OPERATE: {"PruneRecords"},
        Scope.ADMIN: {"ImportRecords", "ListUnreadable", "ReplayUnreadable"},
    }
    for path, scope in SCOPES.items():
        method = path.rpartition("/")[2]
        named = next((each for each, methods in beyond_reading.items() if method in methods), Scope.READ)
        assert scope in {named, None}, path


def test_what_is_not_in_the_table_is_for_admins() -> None:
    assert needed_scope("/fractune.v1.JobService/Explode") is Scope.ADMIN


def test_each_scope_includes_those_before_it() -> None:
    order = [Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN]
    assert all(order[i].includes(order[j]) is (i >= j) for i in range(4) for j in range(4))


CALLS = 2 * REQUESTS_AT_ONCE
LARGE_METHOD = "/fractune.v1.JobService/GetJob"


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
        call = untyped.unary_unary(LARGE_METHOD)
        begun = [call.future(large, timeout=30) for _ in range(REQUESTS_AT_ONCE // 2 - 1)]
        wait_until(lambda: len(inside) == len(begun))
        assert [call(small, timeout=30) for _ in range(CALLS)] == [b"answer"] * CALLS
        begun += [call.future(large, timeout=30) for _ in range(CALLS)]
        wait_until(lambda: len(inside) >= CALLS + REQUESTS_AT_ONCE // 2)
        assert sum(len(name) > 1 for name in inside) == REQUESTS_AT_ONCE // 2
        go.set()
        assert [each.result() for each in begun] == [b"answer"] * len(begun)
    server.stop(None).wait()
