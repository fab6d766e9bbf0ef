"""Attempts of strangers on a real server: each gets nothing. docs/security.md has the same table."""

import contextlib
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fractune import connect
from fractune.errors import AccessRefused, ScopeMissing, ServerUnreachable
from fractune.local.stack import StackOptions, running_stack
from fractune_core.access import Quotas, Scope, TlsFiles, TokenText
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from fractune_server.authenticator import BURST, SCOPES
from tests.support.certificates import Authority, Pair
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import error_line, run_fractune
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import Client, ServerProcess, as_call, model_bytes, running_server

Test = TypeVar("Test", bound=Callable[..., None])
Rows = list[tuple[str, str]]
ROWS: Rows = []
"""what was attempted, and what it got"""
LIST_JOBS = "/fractune.v1.JobService/ListJobs"
NEED_TOKEN = [path for path, scope in SCOPES.items() if scope is not None]


def row(what: str, answer: str) -> Callable[[Test], Test]:
    def add(test: Test) -> Test:
        ROWS.append((what, answer))
        return test

    return add


@dataclass
class Place:
    """A server with TLS, and what its operator has."""

    server: ServerProcess
    redis_url: str
    state: Path
    authority: Authority
    stranger: Authority
    """signed nothing of this server"""

    def token(self, scope: Scope = Scope.ADMIN, lifetime_s: float | None = None) -> TokenText:
        return Admin(self.state).create_token("test", scope, lifetime_s, Quotas())

    def credentials(self, token: TokenText | str | None, pair: Pair | None = None) -> grpc.ChannelCredentials:
        return client_credentials(self.authority, token, pair)


def client_credentials(
    authority: Authority, token: TokenText | str | None, pair: Pair | None = None
) -> grpc.ChannelCredentials:
    own = (None, None) if pair is None else (pair.key.read_bytes(), pair.cert.read_bytes())
    tls = grpc.ssl_channel_credentials(authority.cert.read_bytes(), *own)
    if token is None:
        return tls
    text = token.text if isinstance(token, TokenText) else token
    return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(text))


@contextlib.contextmanager
def running_place(folder: Path, **tls: Any) -> Iterator[Place]:
    """`tls`: `client_ca`, as True, and the address for `metrics`."""
    authority, stranger = Authority.make(folder / "authority"), Authority.make(folder / "stranger")
    pair = authority.issue("server", "localhost", "127.0.0.1")
    files = {"cert": str(pair.cert), "key": str(pair.key)}
    files |= {"client_ca": str(authority.cert)} if tls.get("client_ca") else {}
    options = {"tls": files, "local_socket": str(folder / "s"), "metrics": tls.get("metrics")}
    with running_redis() as redis_url, running_server(redis_url, folder / "state", **options) as server:
        assert server.address, server.said()
        yield Place(server, redis_url, folder / "state", authority, stranger)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("access")) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server that requires certificates, also for its metrics."""
    with running_place(tmp_path_factory.mktemp("guarded"), metrics="0.0.0.0:0", client_ca=True) as made:
        yield made


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, str]]:
    """A server of its own, and the name of a job there that nothing happens to."""
    with (
        running_place(tmp_path_factory.mktemp("waiting")) as place,
        simulated_fleet(place.redis_url) as fleet,
        Client(place.server.address, place.credentials(place.token())) as client,
    ):
        fleet.workers["compile-1"].hold.set()
        job = client.create(client.upload(model_bytes(("conv2d", 1))), trials=2)
        client.wait(job.name, lambda each: each.state == pb.JOB_STATE_INGESTING)
        yield place, job.name


def answer_to(address: str, credentials: grpc.ChannelCredentials | None, path: str = LIST_JOBS) -> grpc.StatusCode:
    """The status of one call with an empty request, which must bring nothing unless it is OK."""
    channel = grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    with channel:
        method: Any = channel.stream_stream(path)
        call = method(iter([b""]), timeout=20)
        try:
            list(call)
        except grpc.RpcError as error:
            assert call.debug_error_string() is not None
            return as_call(error).code()
        return grpc.StatusCode.OK


@row("no token, any method but the health check", "`UNAUTHENTICATED`")
@pytest.mark.parametrize("path", NEED_TOKEN)
def test_no_token(place: Place, path: str) -> None:
    assert answer_to(place.server.address, place.credentials(None), path) is grpc.StatusCode.UNAUTHENTICATED


@row("no token, and a request that never comes", "`UNAUTHENTICATED`, at once")
def test_no_token_and_silence(place: Place) -> None:
    never = threading.Event()

    def silent() -> Iterator[bytes]:
        never.wait(60)
        yield b""

    with grpc.secure_channel(place.server.address, place.credentials(None)) as channel:
        method: Any = channel.stream_unary(LIST_JOBS)
        calls = [method.future(silent()) for _ in range(40)]
        codes = {call.exception(timeout=30).code() for call in calls}
        never.set()
    # More of them than the server has places may be told so, but none of them keeps one.
    assert codes <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert grpc.StatusCode.UNAUTHENTICATED in codes


@row("a wrong token", "`UNAUTHENTICATED`")
def test_wrong_token(place: Place) -> None:
    assert answer_to(place.server.address, place.credentials("guess")) is grpc.StatusCode.UNAUTHENTICATED


@row("the id of a good token with the secret of another", "`UNAUTHENTICATED`")
def test_mixed_token(place: Place) -> None:
    mixed = TokenText(place.token().token_id, place.token().secret)
    assert answer_to(place.server.address, place.credentials(mixed)) is grpc.StatusCode.UNAUTHENTICATED


@row("more than 10 wrong tokens at once from one address", "`RESOURCE_EXHAUSTED`, for a second each")
def test_too_many_wrong_tokens(tmp_path: Path) -> None:
    assert BURST == 10
    with running_place(tmp_path) as place:
        address, guess = place.server.address, place.credentials("guess")
        with grpc.secure_channel(address, guess) as channel:
            call: Any = channel.unary_unary(LIST_JOBS)
            told = []
            for _ in range(3 * BURST):
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"", timeout=20)
                told.append(as_call(refused.value).code())
        assert told[:BURST] == [grpc.StatusCode.UNAUTHENTICATED] * BURST
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in told[BURST:]  # one a second is heard again: it may be the last
        assert answer_to(address, None, "/grpc.health.v1.Health/Check") is grpc.StatusCode.UNAVAILABLE
        open_check = answer_to(address, place.credentials(None), "/grpc.health.v1.Health/Check")
        assert open_check is grpc.StatusCode.OK


@row("an expired token", "`UNAUTHENTICATED`")
def test_expired_token(place: Place) -> None:
    expired = place.token(lifetime_s=-1.0)
    assert answer_to(place.server.address, place.credentials(expired)) is grpc.StatusCode.UNAUTHENTICATED


@row("a revoked token, on its next call over a connection that it had opened before", "`UNAUTHENTICATED`")
def test_revoked_token(place: Place) -> None:
    token = place.token()
    with Client(place.server.address, place.credentials(token)) as client:
        client.jobs.ListJobs(pb.ListJobsRequest())
        assert Admin(place.state).revoke_token(token.token_id)
        with pytest.raises(grpc.RpcError) as refused:
            client.jobs.ListJobs(pb.ListJobsRequest())
    assert as_call(refused.value).code() is grpc.StatusCode.UNAUTHENTICATED


@row("a token that is revoked or expires while it watches a job", "`UNAUTHENTICATED`, within 5 s")
def test_a_watch_ends_with_its_token(waiting: tuple[Place, str]) -> None:
    """Two watches at once: one token is revoked, and the other one expires."""
    place, job = waiting
    revoked, expires = place.token(Scope.READ), place.token(Scope.READ, lifetime_s=2.0)
    with (
        Client(place.server.address, place.credentials(revoked)) as one,
        Client(place.server.address, place.credentials(expires)) as other,
    ):
        watches = [client.jobs.WatchJob(pb.WatchJobRequest(name=job), timeout=60) for client in (one, other)]
        assert [next(watch).name for watch in watches] == [job, job]
        assert Admin(place.state).revoke_token(revoked.token_id)
        began = time.monotonic()
        for watch, limit_s in zip(watches, (5.0, 2.0 + 5.0), strict=True):
            with pytest.raises(grpc.RpcError) as refused:
                list(watch)
            assert as_call(refused.value).code() is grpc.StatusCode.UNAUTHENTICATED
            assert time.monotonic() - began < limit_s


@row("a token that is revoked while it uploads a model", "`UNAUTHENTICATED`, within 5 s")
def test_an_upload_ends_with_its_token(place: Place) -> None:
    token, ended = place.token(Scope.SUBMIT), threading.Event()

    def parts() -> Iterator[pb.UploadModelRequest]:
        yield pb.UploadModelRequest(header=pb.ModelHeader(display_name="m", sha256="0" * 64, size_bytes=10_000_000))
        yield pb.UploadModelRequest(data=b"x")
        assert Admin(place.state).revoke_token(token.token_id)
        while not ended.wait(0.05):
            yield pb.UploadModelRequest(data=b"x")

    with Client(place.server.address, place.credentials(token)) as client:
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as refused:
            client.models.UploadModel(parts(), timeout=60)
        ended.set()
    assert as_call(refused.value).code() is grpc.StatusCode.UNAUTHENTICATED
    assert time.monotonic() - began < 5.0


@row("a token of a smaller scope, on each method that needs a larger one", "`PERMISSION_DENIED`")
@pytest.mark.parametrize("scope", [Scope.READ, Scope.SUBMIT, Scope.OPERATE])
def test_another_scope(place: Place, scope: Scope) -> None:
    credentials = place.credentials(place.token(scope))
    for path in NEED_TOKEN:
        needed = SCOPES[path]
        assert needed is not None
        if not scope.includes(needed):
            assert answer_to(place.server.address, credentials, path) is grpc.StatusCode.PERMISSION_DENIED, path
    assert answer_to(place.server.address, credentials) is grpc.StatusCode.OK


@row("plain text to the port with TLS", "the connection is closed")
def test_plain_text_to_tls(place: Place) -> None:
    assert answer_to(place.server.address, None) is grpc.StatusCode.UNAVAILABLE
    with connect(place.server.address) as client, pytest.raises(ServerUnreachable, match="with TLS needs ca"):
        client.jobs()


@row("a server whose certificate is by an authority other than `--ca`", "the client hangs up, and sends no token")
def test_another_authority(place: Place, tmp_path: Path) -> None:
    token = token_file(tmp_path, place.token())
    said = "no certificate for that name by the authority in ca"
    with (
        connect(place.server.address, ca=place.stranger.cert, token_file=token) as client,
        pytest.raises(ServerUnreachable, match=said),
    ):
        client.jobs()


@row("a token to another machine without `--ca`", "the client refuses, code 2, and sends nothing")
def test_a_token_over_plain_text(place: Place, tmp_path: Path) -> None:
    ended = run_fractune(
        "jobs", "--server", "192.0.2.1:50051", "--token-file", str(token_file(tmp_path, place.token()))
    )
    assert ended.returncode == 2
    assert "is not used in plain text with another machine (192.0.2.1:50051); pass --ca" in error_line(ended)


@row("a token with `--ca` to a port that speaks no TLS", "the client hangs up, and sends no token")
def test_a_token_to_a_port_without_tls(place: Place, tmp_path: Path) -> None:
    token = place.token()
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    with link:
                        heard.extend(link.recv(1 << 16))
                        link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        heard.extend(link.recv(1 << 16))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        authority, file = place.authority.cert, token_file(tmp_path, token)
        with (
            connect(address, ca=authority, token_file=file) as client,
            pytest.raises(ServerUnreachable, match="does not use TLS"),
        ):
            client.jobs()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)
    assert heard
    assert token.secret.encode() not in heard


@row("no certificate, where `--client-ca` asks for one", "the connection is closed")
@row("a certificate of another authority there", "the connection is closed")
@row("a certificate with a token of a smaller scope there", "`PERMISSION_DENIED`")
def test_client_certificates(guarded: Place) -> None:
    address, good = guarded.server.address, guarded.authority.issue("client")
    assert answer_to(address, guarded.credentials(None)) is grpc.StatusCode.UNAVAILABLE
    assert answer_to(address, guarded.credentials(guarded.token())) is grpc.StatusCode.UNAVAILABLE
    foreign = guarded.stranger.issue("client")
    assert answer_to(address, guarded.credentials(guarded.token(), foreign)) is grpc.StatusCode.UNAVAILABLE
    assert answer_to(address, guarded.credentials(None, good)) is grpc.StatusCode.OK
    reader = guarded.credentials(guarded.token(Scope.READ), good)
    assert answer_to(address, reader, "/fractune.v1.LogService/PruneRecords") is grpc.StatusCode.PERMISSION_DENIED
    with connect(address, ca=guarded.authority.cert, client_cert=good.cert, client_key=good.key) as client:
        assert client.jobs() == []


def metrics_answer(
    place: Place, token: TokenText | None, *, path: str = "/metrics", pair: Pair | None = None
) -> tuple[int, str]:
    """Status and text of the port for metrics, over HTTPS."""
    found = re.search(r"metrics at https://\S+:(\d+)/metrics", place.server.said())
    assert found, place.server.said()
    tls = ssl.create_default_context(cafile=str(place.authority.cert))
    if pair is not None:
        tls.load_cert_chain(pair.cert, pair.key)
    shown = {"Authorization": f"Bearer {token.text}"} if token else {}
    request = urllib.request.Request(f"https://127.0.0.1:{found[1]}{path}", headers=shown)
    try:
        with urllib.request.urlopen(request, timeout=20, context=tls) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@row("no token, for metrics that other machines can reach", "401")
@row("a wrong, expired or revoked token for them", "401")
@row("plain HTTP to them", "the connection is closed")
def test_metrics_that_others_can_reach(tmp_path: Path) -> None:
    with running_place(tmp_path, metrics="0.0.0.0:0") as place:
        assert metrics_answer(place, None)[0] == 401
        assert metrics_answer(place, TokenText.new())[0] == 401
        assert metrics_answer(place, place.token(lifetime_s=-1.0))[0] == 401
        code, text = metrics_answer(place, place.token(Scope.READ))
        assert (code, "fractune_build_info{" in text) == (200, True)
        assert metrics_answer(place, None, path="/healthz") == (200, "ok\n")
        found = re.search(r"metrics at https://\S+:(\d+)/", place.server.said())
        assert found
        silent = socket.create_connection(("127.0.0.1", int(found[1])))  # holds up nobody
        with silent, socket.create_connection(("127.0.0.1", int(found[1]))) as plain:
            plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            plain.settimeout(20)
            assert b"fractune" not in plain.recv(1 << 16)
            assert metrics_answer(place, place.token(Scope.READ))[0] == 200
        # One a second is heard again: it may be the last one.
        assert 429 in {metrics_answer(place, TokenText.new())[0] for _ in range(3 * BURST)}


@row("no certificate for them, where `--client-ca` asks for one", "the connection is closed")
def test_metrics_for_certificates(guarded: Place) -> None:
    with pytest.raises(OSError, match=r"(?i)certificate required|EOF|closed|reset"):
        metrics_answer(guarded, guarded.token(Scope.READ))
    assert metrics_answer(guarded, None, pair=guarded.authority.issue("prometheus"))[0] == 200


def test_a_request_that_cannot_be_read_ends_its_call_alone(place: Place) -> None:
    credentials = place.credentials(place.token())
    with grpc.secure_channel(place.server.address, credentials) as channel:
        method: Any = channel.unary_unary(LIST_JOBS)
        with pytest.raises(grpc.RpcError) as refused:
            method(b"\xff\xff", timeout=20)
        assert as_call(refused.value).code() is grpc.StatusCode.INVALID_ARGUMENT
        nothing: Any = channel.stream_unary(LIST_JOBS)
        with pytest.raises(grpc.RpcError) as refused:
            nothing(iter([]), timeout=20)
        assert as_call(refused.value).code() is grpc.StatusCode.INVALID_ARGUMENT
        assert method(b"", timeout=20) == b""


def test_the_health_check_is_open(place: Place) -> None:
    with grpc.secure_channel(place.server.address, place.credentials(None)) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING


def test_the_owner_of_a_token_is_let_in_and_told_what_it_may_not(place: Place, tmp_path: Path) -> None:
    files: dict[str, Any] = {"ca": place.authority.cert, "token_file": token_file(tmp_path, place.token(Scope.READ))}
    with connect(place.server.address, **files) as client:
        assert client.jobs() == []
        with pytest.raises(ScopeMissing, match="has the scope read, and this needs operate"):
            client.log.prune()
    with (
        connect(place.server.address, ca=place.authority.cert) as client,
        pytest.raises(AccessRefused, match="needs a token; ask its operator for one, and pass token_file"),
    ):
        client.jobs()


def test_the_user_of_the_server_needs_no_token_at_its_own_socket(place: Place) -> None:
    path = place.state.parent / "s"
    assert path.stat().st_mode & 0o777 == 0o600
    with connect(f"unix:{path}") as client:
        assert client.workers() == []


def test_a_stack_with_tls_watches_its_own_server_without_a_token(place: Place, tmp_path: Path) -> None:
    pair = place.authority.issue("stack", "127.0.0.1")
    options = StackOptions(tmp_path / "state", listen="127.0.0.1:0", tls=TlsFiles(pair.cert, pair.key))
    with running_stack(options) as stack:
        with connect(stack.own_address) as client:
            assert client.workers() == []
        with connect(stack.address, ca=place.authority.cert) as stranger, pytest.raises(AccessRefused):
            stranger.workers()
        file = token_file(tmp_path, Admin(options.state).create_token("test", Scope.READ, None, Quotas()))
        with connect(stack.address, ca=place.authority.cert, token_file=file) as client:
            assert client.workers() == []


def test_the_command_line_makes_uses_lists_and_revokes_a_token_of_a_running_server(
    place: Place, tmp_path: Path
) -> None:
    state, out = ("--state", str(place.state)), tmp_path / "ci.token"
    made = run_fractune(
        "admin", "token", "create", "ci", "--scope", "read", "--expires", "1h", "--out", str(out), *state
    )
    assert (made.returncode, out.stat().st_mode & 0o777) == (0, 0o600)
    token = TokenText.parse(out.read_text().strip())
    assert token is not None
    assert token.secret not in made.stdout + made.stderr
    reached = {"FRACTUNE_CA": str(place.authority.cert), "FRACTUNE_TOKEN_FILE": str(out)}
    assert run_fractune("jobs", "--server", place.server.address, env=reached).returncode == 0
    assert run_fractune("admin", "token", "revoke", token.token_id, *state).returncode == 0
    refused = run_fractune("jobs", "--server", place.server.address, env=reached)
    assert refused.returncode == 11
    assert "is revoked" in error_line(refused)
    listed = run_fractune("admin", "token", "list", "--json", *state)
    assert f'"token": "{token.token_id}"' in listed.stdout
    assert token.secret_sha256 not in listed.stdout


def test_secrets_are_in_no_log_and_no_file_of_the_server(place: Place) -> None:
    token = place.token()
    assert answer_to(place.server.address, place.credentials(token)) is grpc.StatusCode.OK
    assert token.secret not in place.server.said()
    for path in place.state.rglob("*"):
        if path.is_file():
            assert token.secret.encode() not in path.read_bytes(), path


def test_the_table_in_the_docs_is_this_one() -> None:
    page = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| attempt | result |\n|---|---|\n")
    shown = [match.groups() for match in re.finditer(r"^\| (.*) \| (.*) \|$", table.partition("\n\n")[0], re.MULTILINE)]
    assert sorted(shown) == sorted(ROWS)


def token_file(folder: Path, token: TokenText) -> Path:
    path = folder / "token"
    path.write_text(token.text)
    return path
