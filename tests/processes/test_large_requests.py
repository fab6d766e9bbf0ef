"""Large requests to a real server: refused above a limit, and few of those below it are in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fractune_core.access.addresses import MOST_MESSAGE_BYTES
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_core.workloads import workload_hash
from fractune_server.services.log import IMPORT_LIMIT_BYTES
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import ServerProcess, as_call, running_server

CALLERS = 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_redis() as url, running_server(url, tmp_path_factory.mktemp("large") / "state") as running:
        yield running


def refusal(server: ServerProcess, size: int) -> grpc.Call:
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
        rpc.JobServiceStub(channel).GetJob(pb.GetJobRequest(name="x" * size), timeout=60)
    return as_call(refused.value)


def test_a_message_above_the_limit_is_refused(server: ServerProcess) -> None:
    said = refusal(server, MOST_MESSAGE_BYTES)
    assert said.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"max ({MOST_MESSAGE_BYTES + 5} vs. {MOST_MESSAGE_BYTES})" in (said.details() or "")
    assert refusal(server, MOST_MESSAGE_BYTES - 100).code() is grpc.StatusCode.INVALID_ARGUMENT
    parts = [pb.UploadModelRequest(data=b"x" * MOST_MESSAGE_BYTES)]
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
        rpc.ModelServiceStub(channel).UploadModel(iter(parts), timeout=60)
    assert as_call(refused.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_large_requests_of_many_callers_do_not_fill_the_memory(server: ServerProcess) -> None:
    before = peak_mib(server)
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(lambda _: refusal(server, MOST_MESSAGE_BYTES - 100), range(CALLERS)))
    assert {answer.code() for answer in answers} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert all(len(answer.details() or "") <= 2_000 for answer in answers)
    assert peak_mib(server) - before < CALLERS * (MOST_MESSAGE_BYTES >> 20) * 2.5


def test_an_import_of_one_call_has_a_limit_and_adds_nothing_beyond_it(server: ServerProcess) -> None:
    text = f'"{"x" * (MOST_MESSAGE_BYTES - 1000)}"'
    part = pb.ImportRecordsRequest(workload=pb.Workload(workload_hash=workload_hash(text), json=text))
    parts = [part] * (IMPORT_LIMIT_BYTES // len(text) + 1)
    with server.client() as client:
        assert client.log.ImportRecords(iter(parts[:1]), timeout=60).added == 0
        with pytest.raises(grpc.RpcError) as refused:
            client.log.ImportRecords(iter(parts), timeout=60)
    said = as_call(refused.value)
    assert said.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert said.details() == f"an import is limited to {IMPORT_LIMIT_BYTES} bytes; send it in parts"


def peak_mib(server: ServerProcess) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:"))
