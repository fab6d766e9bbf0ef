"""Uploads that are cut go on: real servers, real cuts of the connection, a server that is killed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fractune.rpc import RpcClient
from fractune.uploads import CHUNK_BYTES
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.tokens import Quotas, Scope
from fractune_server.admin import create_token
from tests.processes.test_access import Place, client_credentials, running_place
from tests.support.processes.cutting_proxy import cutting_proxy
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, ServerProcess, as_call, running_server

SIZE = 24 << 20
TWICE = 8 * CHUNK_BYTES
"""of what is cut off, at most so much had left the client: a chunk, and what gRPC and TCP hold for the connection"""
FRAMES = SIZE // 50
"""gRPC's and HTTP/2's own bytes around the data, and the other calls"""


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


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
    cuts = (8 << 20, 7 << 20, 6 << 20)
    with cutting_proxy(server.address, *cuts) as proxy, RpcClient(proxy.address) as client:
        assert client.upload_model(path).size_bytes == SIZE
    assert proxy.brought_bytes[:3] == list(cuts)
    assert sum(proxy.brought_bytes) < SIZE + 3 * TWICE + FRAMES
    assert sum(proxy.brought_bytes[1:]) < SIZE - (8 << 20) + 3 * TWICE + FRAMES, "it did not begin again at byte 0"


def test_a_server_killed_in_mid_upload_goes_on_from_what_it_had(redis_url: str, tmp_path: Path) -> None:
    path = model_file(tmp_path)
    sha256 = digest(path.read_bytes())
    state = tmp_path / "state"
    address = f"unix:{tmp_path}/s"
    first = ServerProcess(redis_url, state, listen=address)
    held = threading.Event()

    def half() -> Iterator[pb.UploadModelRequest]:
        yield pb.UploadModelRequest(header=pb.ModelHeader(display_name="m", sha256=sha256, size_bytes=SIZE))
        with path.open("rb") as file:
            while file.tell() < SIZE // 2:
                yield pb.UploadModelRequest(data=file.read(CHUNK_BYTES))
        held.wait(60)

    with RpcClient(address) as client, Client(address) as raw:
        call = raw.models.UploadModel.future(half())
        name = f"models/{sha256}"
        wait_until(lambda: raw.models.GetUpload(pb.GetUploadRequest(name=name)).received_bytes == SIZE // 2)
        first.kill()
        held.set()
        assert call.exception() is not None
        with running_server(redis_url, state, listen=address) as second:
            assert second.address, second.said()
            asked: list[int] = []
            send = client._models.UploadModel

            def spied(parts: Iterator[pb.UploadModelRequest], timeout: float) -> pb.Model:
                header = next(parts)
                asked.append(header.header.offset_bytes)
                return send(iter([header, *parts]), timeout=timeout)

            client._models.UploadModel = spied  # type: ignore[assignment, method-assign]
            assert client.upload_model(path).size_bytes == SIZE
            assert asked == [SIZE // 2]
    assert (state / "blobs" / sha256).read_bytes() == path.read_bytes()
    assert list((state / "uploads").iterdir()) == []
