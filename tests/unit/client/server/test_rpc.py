"""The client against a scripted server: errors, pages, streams, files, and what it sends where in plain text."""

import errno
import os
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import grpc
import pytest

import fractune
from fractune.server import uploads
from fractune.server.credentials import VARIABLES, Credentials
from fractune.server.rpc import Absence, RpcClient
from fractune_core.access import TokenText
from fractune_core.codec.messages import to_proto
from fractune_core.errors import (
    BadModel,
    BadRequest,
    FractuneError,
    NotFound,
    RedisGone,
    ServerUnreachable,
    StateUnusable,
    error_kinds,
)
from fractune_core.files.new_bundle import NewBundle
from fractune_core.pb import fractune_pb2 as pb
from tests.support.certificates import Authority
from tests.support.client_samples import job_script, record
from tests.support.processes.scripted_server import ScriptedServer, abort, serving

ELSEWHERE = "tuner.example:50051"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TokenText.new().text)
    return path


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRACTUNE_CA", "/env/ca")
    monkeypatch.setenv("FRACTUNE_TOKEN_FILE", "/env/token")
    assert Credentials.found(ca="/own/ca") == Credentials(ca=Path("/own/ca"), token_file=Path("/env/token"))
    monkeypatch.setenv("FRACTUNE_CA", "")
    assert Credentials.found().ca is None


def test_a_token_or_a_certificate_needs_tls_to_another_machine(token: Path) -> None:
    with pytest.raises(BadRequest, match=rf"^token_file {token} is not used .*tuner\.example.* pass ca with"):
        fractune.connect(ELSEWHERE, token_file=token)
    with pytest.raises(BadRequest, match=r"^client_cert .* is not used in plain text"):
        fractune.connect(ELSEWHERE, client_cert=token)
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/nowhere"):
        fractune.connect(address, token_file=token).close()
    fractune.connect(ELSEWHERE).close()


def test_files_that_cannot_be_used_are_named(token: Path, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "a")
    pair = authority.issue("client")
    fractune.connect(ELSEWHERE, ca=authority.cert, token_file=token).close()
    fractune.connect(ELSEWHERE, ca=authority.cert, client_cert=pair.cert, client_key=pair.key).close()
    with pytest.raises(BadRequest, match=r"^ca .*token: holds no certificate"):
        fractune.connect(ELSEWHERE, ca=token)
    with pytest.raises(BadRequest, match=r"token file .*: holds no token"):
        fractune.connect(ELSEWHERE, ca=authority.cert, token_file=authority.cert)
    with pytest.raises(BadRequest, match="go together"):
        fractune.connect(ELSEWHERE, ca=authority.cert, client_cert=pair.cert)


def test_a_certificate_for_another_name_is_not_taken(token: Path, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "a")
    pair = authority.issue("server", "tuner.example")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        with (
            fractune.connect(f"127.0.0.1:{port}", ca=authority.cert, token_file=token) as client,
            pytest.raises(ServerUnreachable, match="no certificate for that name"),
        ):
            client.jobs()
    finally:
        server.stop(grace=None).wait()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving(ScriptedServer()) as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[RpcClient]:
    with RpcClient(server.address) as connected:
        yield connected


@pytest.mark.parametrize("address", ["http://localhost:50051", "https://user:password@host:1"])
def test_an_address_with_a_scheme_is_refused(address: str) -> None:
    with pytest.raises(BadRequest, match=r"^server 'https?://\.\.\.': write HOST:PORT, and --ca FILE for TLS$"):
        RpcClient(address)


def test_a_model_is_sent_once_and_whole(client: RpcClient, server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(bytes(range(256)) * 10_000)
    first, second = client.upload_model(path), client.upload_model(path)
    assert first.name == second.name
    assert server.models[first.name] == path.read_bytes()
    assert server.uploads == 1


def test_closing_the_client_ends_an_upload(client: RpcClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"a model")
    released = threading.Event()

    def parts(_: uploads._Upload) -> Iterator[pb.UploadModelRequest]:
        threading.Timer(0.1, client.close).start()
        released.wait(30)
        yield pb.UploadModelRequest()

    monkeypatch.setattr(uploads._Upload, "_parts", parts)
    began = time.monotonic()
    with pytest.raises(ServerUnreachable):
        client.upload_model(path)
    released.set()
    assert time.monotonic() - began < uploads.PATIENCE_S / 2


def test_a_model_that_cannot_be_read_is_named(client: RpcClient, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"nothing\.onnx"):
        client.upload_model(tmp_path / "nothing.onnx")


def test_an_empty_model_is_not_sent(client: RpcClient, server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    with pytest.raises(BadModel, match=r"m\.onnx is empty; copy or export it again"):
        client.upload_model(path)
    assert not server.uploads


def test_a_model_with_a_name_that_no_server_takes_is_not_sent(
    client: RpcClient, server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "two\nlines.onnx"
    path.write_bytes(b"model")
    with pytest.raises(BadRequest, match=r"the model file's name is 'two lines.onnx'; name the file by 1 to 200 bytes"):
        client.upload_model(path)
    assert not server.uploads


def test_every_error_of_the_server_comes_back_as_itself(client: RpcClient, server: ScriptedServer) -> None:
    for kind in set(error_kinds().values()) - {FractuneError}:
        server.fail_with = kind("what is wrong; what to do")
        with pytest.raises(kind, match="what is wrong; what to do") as caught:
            client.workers()
        assert type(caught.value) is kind


def test_no_server_is_told_with_the_address_and_what_to_run() -> None:
    with RpcClient("127.0.0.1:1") as client, pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:1.*fractune up"):
        client.workers()


def test_a_server_that_does_not_answer_in_time_is_unreachable(server: ScriptedServer) -> None:
    released = threading.Event()

    def hang(*_: object) -> None:
        released.wait(30)

    server._maybe_fail = hang  # type: ignore[method-assign, assignment]
    with RpcClient(server.address, timeout_s=0.2) as client, pytest.raises(ServerUnreachable, match="in time"):
        client.workers()
    released.set()


def test_all_pages_are_read(client: RpcClient, server: ScriptedServer) -> None:
    server.script = [pb.Job(name=f"jobs/{number}") for number in range(5)]
    assert [job.name for job in client.jobs()] == [f"jobs/{number}" for number in range(5)]
    assert len(list(client.jobs(limit=3))) == 3
    server.records = [to_proto(record(f"r{number}"), pb.Record) for number in range(5)]
    found = client.records(pb.RecordFilter(), 4)
    assert (len(found.records), found.total_size) == (4, 5)


def test_watching_goes_on_when_the_server_comes_back(tmp_path: Path) -> None:
    script = job_script()
    address = f"unix:{tmp_path / 's'}"
    first, second = ScriptedServer(), ScriptedServer()
    second.script = script
    gone = threading.Event()

    def watch(_: grpc.ServicerContext) -> Iterator[pb.Job]:
        yield script[0]
        gone.wait(30)

    first.watch = watch
    with RpcClient(address) as client:
        with serving(first, address):
            jobs = client.watch_job("j1")
            assert next(jobs).revision == 1
            gone.set()
            first_end = threading.Event()
        first_end.set()
        with serving(second, address):
            assert [job.revision for job in jobs] == [2, 3, 4]


def test_a_server_that_stays_away_is_told_of_and_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractune.server.rpc.REPORT_EVERY_S", 0.2)
    address, absences = f"unix:{tmp_path / 's'}", list[Absence]()
    with RpcClient(address, reconnect_s=0.9) as client, pytest.raises(ServerUnreachable, match="no fractune server"):
        list(client.watch_job("j1", absences.append))
    assert [round(each.away_s, 1) for each in absences][:4] == [0.2, 0.4, 0.6, 0.8]
    assert {(each.server, each.reconnect_s) for each in absences} == {(address, 0.9)}


def test_each_absence_is_waited_for_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has not changed between two of them is shown once more, and the server was there."""
    now, script, server = [0.0], job_script(), ScriptedServer()
    monkeypatch.setattr("fractune.server.rpc.time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))

    def watch(_: grpc.ServicerContext) -> Iterator[pb.Job]:
        now[0] += 30.0
        yield from script[: 1 if now[0] <= 120.0 else None]

    server.watch = watch
    address = f"unix:{tmp_path / 's'}"
    with serving(server, address), RpcClient(address, reconnect_s=45.0) as client:
        assert [job.revision for job in client.watch_job("j1")] == [1, 2, 3, 4]


def test_closing_the_client_ends_the_waiting_for_a_server(tmp_path: Path) -> None:
    with RpcClient(f"unix:{tmp_path / 's'}", reconnect_s=3600.0) as client:
        threading.Timer(0.2, client.close).start()
        with pytest.raises(ServerUnreachable):
            list(client.watch_job("j1"))


def test_the_servers_own_word_ends_watching(client: RpcClient, server: ScriptedServer) -> None:
    def watch(context: grpc.ServicerContext) -> NoReturn:
        abort(context, RedisGone("Redis stopped"))

    server.watch = watch
    with pytest.raises(RedisGone):
        list(client.watch_job("j1"))


def test_closing_the_client_ends_a_call_in_progress(server: ScriptedServer) -> None:
    released = threading.Event()

    def watch(_: grpc.ServicerContext) -> Iterator[pb.Job]:
        yield job_script()[0]
        released.wait(30)

    server.watch = watch
    client = RpcClient(server.address)
    jobs = client.watch_job("j1")
    next(jobs)
    threading.Timer(0.1, client.close).start()
    with pytest.raises(ServerUnreachable):
        next(jobs)
    released.set()


def test_a_bundle_arrives_whole_or_not_at_all(client: RpcClient, server: ScriptedServer, tmp_path: Path) -> None:
    server.bundles["bundles/b1"] = b"0123456789"
    client.download_bundle("bundles/b1", NewBundle(tmp_path / "m.fractune"))
    assert (tmp_path / "m.fractune").read_bytes() == b"0123456789"
    with pytest.raises(NotFound):
        client.download_bundle("bundles/none", NewBundle(tmp_path / "n.fractune"))
    with pytest.raises(FractuneError, match=r"cannot write the bundle .*; pass --out with another path$"):
        client.download_bundle("bundles/b1", NewBundle(tmp_path / "m.fractune" / "under-a-file"))
    assert [path.name for path in tmp_path.iterdir()] == ["m.fractune"]


def test_a_bundle_for_a_full_disk_needs_another_folder(
    client: RpcClient, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_draft: Path, _to: Path) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.bundles["bundles/b1"] = b"0123456789"
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StateUnusable, match=r"No space left on device; pass --out with a folder that has room$"):
        client.download_bundle("bundles/b1", NewBundle(tmp_path / "m.fractune"))
    assert list(tmp_path.iterdir()) == []


class TornCall:
    """A call whose wait is interrupted as that of a condition, which then has not taken its lock again."""

    def __iter__(self) -> Iterator[pb.Job]:
        condition = threading.Condition()
        with condition:
            condition.release()
            raise KeyboardInterrupt

    def cancel(self) -> None:
        pass


def test_a_signal_within_a_wait_of_grpc_is_told_as_that_signal(
    client: RpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client._jobs, "WatchJob", lambda *_, **__: TornCall())
    with pytest.raises(KeyboardInterrupt):
        next(client.watch_job("jobs/1"))
