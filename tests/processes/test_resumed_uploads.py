"""Uploads that are cut go on: real servers, real cuts of the connection, a server that is killed."""

import hashlib
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fractune.server import uploads
from fractune.server.rpc import RpcClient
from fractune_core.access import Quotas, Scope
from fractune_core.errors import ServerUnreachable
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from tests.processes.test_access import Place, client_credentials, running_place
from tests.support.processes.cutting_proxy import cutting_proxy
from tests.support.processes.redis_process import wait_until
from tests.support.processes.server_process import Client, ServerProcess, as_call, running_server

SIZE = 48 << 20
TWICE = 11 << 20
"""by each cut hardly more is lost that had left the client: a chunk, and what gRPC and TCP hold of a connection, which
grows where the server is slow to read"""
FRAMES = SIZE // 50
"""gRPC's and HTTP/2's own bytes around the data, and the other calls"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[ServerProcess]:
    with running_server(redis_url, tmp_path_factory.mktemp("resumed") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("owners")) as made:
        yield made


def model_file(folder: Path, size: int = SIZE) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(random.Random(str(folder)).randbytes(size))
    return path


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def test_an_upload_that_is_cut_three_times_is_sent_once(server: ServerProcess, tmp_path: Path) -> None:
    path = model_file(tmp_path)
    cuts = (24 << 20, 12 << 20, 8 << 20)
    with cutting_proxy(server.address, *cuts) as proxy, RpcClient(proxy.address) as client:
        assert client.upload_model(path).size_bytes == SIZE
    assert proxy.brought_bytes[:3] == list(cuts)
    assert sum(proxy.brought_bytes) < SIZE + len(cuts) * TWICE + FRAMES  # 92 MiB, did it begin again each time


@pytest.mark.long
def test_a_server_killed_in_mid_upload_is_waited_for_and_goes_on_from_what_it_had(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state, address = model_file(tmp_path), tmp_path / "state", f"unix:{tmp_path}/s"
    sha256, killed = digest(path.read_bytes()), threading.Event()
    send, sent = uploads._Upload._parts, [0]

    def parts(upload: uploads._Upload) -> Iterator[pb.UploadModelRequest]:
        for part in send(upload):
            sent[0] += len(part.data)
            yield part
            if sent[0] >= SIZE // 2:
                killed.wait(60)

    monkeypatch.setattr(uploads._Upload, "_parts", parts)
    first = ServerProcess(redis_url, state, listen=address)
    with ThreadPoolExecutor() as pool, RpcClient(address) as client:
        uploaded = pool.submit(client.upload_model, path)
        part = state / "uploads" / f"anybody.{sha256}"
        wait_until(lambda: part.exists() and part.stat().st_size == SIZE // 2)
        first.kill()
        killed.set()
        with running_server(redis_url, state, listen=address) as second:
            assert second.address, second.said()
            assert uploaded.result(90).size_bytes == SIZE
    assert sent[0] <= SIZE + TWICE
    assert (state / "blobs" / sha256).read_bytes() == path.read_bytes()
    assert not part.exists()


def begin(client: Client, payload: bytes, *, until: int, sha256: str = "", offset: int = 0) -> str:
    """Send the bytes from `offset` to `until`, then break off; the model's name."""
    name = f"models/{sha256 or digest(payload)}"
    header = pb.ModelHeader(
        display_name="m", sha256=name.partition("/")[2], size_bytes=len(payload), offset_bytes=offset
    )
    broken_off = threading.Event()

    def parts() -> Iterator[pb.UploadModelRequest]:
        yield pb.UploadModelRequest(header=header)
        yield pb.UploadModelRequest(data=payload[offset:until])
        broken_off.wait(60)

    call = client.models.UploadModel.future(parts())
    try:
        wait_until(lambda: received(client, name) == until or call.done())
    finally:
        call.cancel()
        broken_off.set()
    return name


def received(client: Client, name: str) -> int:
    return client.models.GetUpload(pb.GetUploadRequest(name=name)).received_bytes


def finish(client: Client, payload: bytes, *, offset: int, sha256: str = "") -> pb.Model:
    header = pb.ModelHeader(
        display_name="m", sha256=sha256 or digest(payload), size_bytes=len(payload), offset_bytes=offset
    )
    rest = pb.UploadModelRequest(data=payload[offset:])
    return client.models.UploadModel(iter([pb.UploadModelRequest(header=header), rest]), timeout=30)


def refusal(client: Client, payload: bytes, *, offset: int, sha256: str = "") -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        finish(client, payload, offset=offset, sha256=sha256)
    call = as_call(refused.value)
    return call.code(), call.details() or ""


def test_a_wrong_byte_in_a_part_throws_all_of_it_away(server: ServerProcess) -> None:
    right = b"r" * 9000
    wrong = right[:4000] + b"w" + right[4001:]
    with server.client() as client:
        name = begin(client, wrong, until=6000, sha256=digest(right))
        code, said = refusal(client, right, offset=6000)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert said.count("\n") == 0
        assert f"not {digest(right)}; all of them were thrown away: upload it again" in said
        assert received(client, name) == 0
        assert finish(client, right, offset=0).size_bytes == 9000


def test_an_upload_goes_on_no_later_than_where_it_was_cut(server: ServerProcess) -> None:
    payload = b"g" * 5000
    with server.client() as client:
        begin(client, payload, until=3000)
        code, said = refusal(client, payload, offset=3001)
        assert (code, "resumes at byte 3001, and 3000 have arrived" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        code, said = refusal(client, payload, offset=5001)
        assert (code, "the file has bytes 0 to 5000" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert finish(client, payload, offset=2000).size_bytes == 5000


def test_a_token_neither_sees_nor_continues_the_part_of_another(place: Place) -> None:
    payload = b"p" * 9000
    mine, theirs = (Admin(place.state).create_token("x", Scope.SUBMIT, None, Quotas()) for _ in range(2))
    with (
        Client(place.server.address, client_credentials(place.authority, mine)) as client,
        Client(place.server.address, client_credentials(place.authority, theirs)) as other,
    ):
        name = begin(client, payload, until=6000)
        assert received(other, name) == 0
        code, said = refusal(other, payload, offset=6000)
        assert (code, "resumes at byte 6000, and 0 have arrived" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        begin(other, b"?" * 9000, until=100, sha256=digest(payload))
        assert (received(client, name), received(other, name)) == (6000, 100)
        assert finish(client, payload, offset=6000).size_bytes == 9000


def test_the_part_of_a_cut_upload_counts_towards_the_quota(place: Place) -> None:
    made = Admin(place.state).create_token("small", Scope.SUBMIT, None, Quotas(stored_bytes=10_000))
    first, second = b"1" * 8000, b"2" * 5000
    with Client(place.server.address, client_credentials(place.authority, made)) as client:
        begin(client, first, until=6000)
        code, said = refusal(client, second, offset=0)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        # While the server has not seen that the call was broken off, it counts whole.
        assert re.search(r"has [24]000 of 10000 left, with [68]000 in incomplete uploads", said)
        assert finish(client, first, offset=6000).size_bytes == 8000
        assert finish(client, b"3" * 2000, offset=0).size_bytes == 2000


@pytest.mark.long
def test_a_server_that_stays_away_is_told_with_what_it_keeps(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PATIENCE_S", 0.5)
    path = model_file(tmp_path)
    with (
        running_server(redis_url, tmp_path / "state") as server,
        cutting_proxy(server.address, 8 << 20, 4 << 20, *[0] * 50) as proxy,
        RpcClient(proxy.address) as client,
        pytest.raises(ServerUnreachable, match=rf"\d+ of {SIZE} bytes of m\.onnx are kept there for a day$"),
    ):
        client.upload_model(path)
