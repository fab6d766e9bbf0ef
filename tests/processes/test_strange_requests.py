"""A real server takes requests and results that nobody meant: a few hundred of the inputs of `scripts/fuzz`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from fractune_core.access import MOST_MESSAGE_BYTES
from fractune_core.fleet.redis_names import EVENT_FIELD, SERVER_STREAM, UNREADABLE
from fractune_core.fleet.redis_state import CANCELLED
from fractune_core.fleet.signed_messages import seal_event
from fractune_core.operators import workload_hash
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_server.services.log import IMPORT_LIMIT_BYTES
from tests.support.fuzz import served
from tests.support.fuzz.sealed import EVENTS
from tests.support.fuzz.target import Target, fuzz
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import ServerProcess, as_call, model_bytes, running_server, simulated_stack
from tests.support.secret import SECRET


@pytest.mark.long
@pytest.mark.parametrize("target", served.TARGETS, ids=lambda target: target.name)
def test_a_server_refuses_or_takes_what_nobody_meant(target: Target) -> None:
    outcome = fuzz(target, 300, seed=1)
    assert outcome.examples == [], f"scripts/fuzz --target '{target.name}' --seed {outcome.seed}"
    assert outcome.inputs == 300


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_redis() as found:
        yield found


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(url, tmp_path_factory.mktemp("strange") / "state") as running:
        yield running


@pytest.mark.parametrize("path", ["/fractune.v1.JobService/GetJob", "/fractune.v1.ModelService/UploadModel"])
def test_bytes_that_are_no_message_are_a_bad_request(server: ServerProcess, path: str) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.stream_stream(path)
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([b"\xff\xff\xff"]), timeout=20))
    error = as_call(refused.value)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the request is not a message of this method" in (error.details() or "")
    assert "Traceback" not in server.said()


def test_a_method_that_the_server_does_not_have_is_said_to_be_none(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary("/grpc.health.v1.Health/List")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=20)
    assert as_call(refused.value).code() is grpc.StatusCode.UNIMPLEMENTED
    assert "Traceback" not in server.said()


def test_a_job_whose_spec_is_too_long_is_refused(server: ServerProcess) -> None:
    with server.client() as client, pytest.raises(grpc.RpcError) as refused:
        client.create(f"models/{'a' * 64}", only="x" * 20_000)
    error = as_call(refused.value)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "bytes, and 16384 is the limit" in (error.details() or "")


def test_a_servers_files_are_its_users_alone(url: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_server(url, state) as server, server.client() as client:
        client.upload(model_bytes(("op", 1)))
        found = [state, *state.rglob("*")]
        assert len(found) > 3
        assert [path for path in found if path.stat().st_mode & 0o077] == []
        server.kill()
        state.chmod(0o750)
    with running_server(url, state) as server:
        assert f"state folder {state}: others may open it (mode 750)" in server.said()


def test_a_question_about_the_log_has_a_size(server: ServerProcess) -> None:
    long, shares = "x" * 300, [f"cpu:{number}" for number in range(1, 100)]
    asked: Any
    with server.client() as client:
        for asked in (
            (client.log.ListRecords, pb.ListRecordsRequest(filter=pb.RecordFilter(operator=long)), "operator has 300"),
            (client.log.MatchModel, pb.MatchModelRequest(model=long * 60), "bytes, and 16384 is the limit"),
            (client.log.TabulateModel, pb.TabulateModelRequest(model="models/a", shares=shares), "more than 64 shares"),
        ):
            method, request, said = asked
            with pytest.raises(grpc.RpcError) as refused:
                method(request, timeout=20)
            error = as_call(refused.value)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert said in (error.details() or "")


def test_a_model_is_not_read_on_for_a_caller_that_has_left(tmp_path: Path) -> None:
    with simulated_stack(tmp_path / "state") as (_, fleet, _, client):
        worker = fleet.workers["compile-1"]
        worker.hold.set()
        model = client.upload(model_bytes(("op", 1)))
        call = client.log.MatchModel.future(pb.MatchModelRequest(model=model, share="cpu:1"), timeout=60)
        wait_until(lambda: worker.redis.keys("rq:job:*"))
        call.cancel()
        wait_until(lambda: worker.redis.zrange(CANCELLED, 0, -1))
        worker.hold.clear()


def test_a_workers_message_of_any_length_fits_into_a_list_of_jobs(tmp_path: Path) -> None:
    with simulated_stack(tmp_path / "state") as (_, fleet, server, client):
        for worker in fleet.workers.values():
            worker.hold.set()
        job = client.create(client.upload(model_bytes(("op", 1))), shares=["cpu:1"], trials=2).name
        failed: Any = {"event": "work_failed", "job": job.removeprefix("jobs/"), "task": "ingest", "error": "BadModel"}
        failed["message"] = f"node '{'A' * 5_000_000}' cannot be imported; export without it"
        client.wait(job, lambda found: found.state == pb.JOB_STATE_INGESTING)
        fleet.workers["build-1"].redis.xadd(SERVER_STREAM, {EVENT_FIELD: seal_event(SECRET, failed)})
        ended = client.finish(job)
        assert (ended.error, len(ended.message)) == ("BadModel", 2_000)
        assert ended.message.endswith("A' cannot be imported; export without it")
        assert len(server.said()) < 100_000


def test_a_result_of_another_shape_does_not_end_the_server(tmp_path: Path) -> None:
    """One that a server takes in again whenever it is started would keep it down for good."""
    strange: Any = {**EVENTS[0], "record": {**EVENTS[0]["record"], "operator": {"not": "a text"}}}
    with simulated_stack(tmp_path / "state") as (_, fleet, server, client):
        connection = fleet.workers["build-1"].redis
        events: tuple[Any, ...] = (strange, {"event": "ingested"}, {"event": "compiled", "job": {}})
        for event in events:
            connection.xadd(SERVER_STREAM, {EVENT_FIELD: seal_event(SECRET, event)})
        wait_until(lambda: connection.xlen(UNREADABLE) == 3)
        job = client.finish(client.create(client.upload(model_bytes(("op", 1))), shares=["cpu:1"], trials=2).name)
        assert job.state == pb.JOB_STATE_DONE
        assert server.process.poll() is None


CALLERS = 64


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_redis() as url, running_server(url, tmp_path_factory.mktemp("large") / "state") as running:
        yield running


def refusal(small_server: ServerProcess, size: int) -> grpc.Call:
    with grpc.insecure_channel(small_server.address) as channel, pytest.raises(grpc.RpcError) as refused:
        rpc.JobServiceStub(channel).GetJob(pb.GetJobRequest(name="x" * size), timeout=60)
    return as_call(refused.value)


def test_a_message_above_the_limit_is_refused(small_server: ServerProcess) -> None:
    said = refusal(small_server, MOST_MESSAGE_BYTES)
    assert said.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"max ({MOST_MESSAGE_BYTES + 5} vs. {MOST_MESSAGE_BYTES})" in (said.details() or "")
    assert refusal(small_server, MOST_MESSAGE_BYTES - 100).code() is grpc.StatusCode.INVALID_ARGUMENT
    parts = [pb.UploadModelRequest(data=b"x" * MOST_MESSAGE_BYTES)]
    with grpc.insecure_channel(small_server.address) as channel, pytest.raises(grpc.RpcError) as refused:
        rpc.ModelServiceStub(channel).UploadModel(iter(parts), timeout=60)
    assert as_call(refused.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_large_requests_of_many_callers_do_not_fill_the_memory(small_server: ServerProcess) -> None:
    before = peak_mib(small_server)
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(lambda _: refusal(small_server, MOST_MESSAGE_BYTES - 100), range(CALLERS)))
    assert {answer.code() for answer in answers} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert all(len(answer.details() or "") <= 2_000 for answer in answers)
    assert peak_mib(small_server) - before < CALLERS * (MOST_MESSAGE_BYTES >> 20) * 2.5


def test_an_import_of_one_call_has_a_limit_and_adds_nothing_beyond_it(small_server: ServerProcess) -> None:
    text = f'"{"x" * (MOST_MESSAGE_BYTES - 1000)}"'
    part = pb.ImportRecordsRequest(workload=pb.Workload(workload_hash=workload_hash(text), json=text))
    parts = [part] * (IMPORT_LIMIT_BYTES // len(text) + 1)
    with small_server.client() as client:
        assert client.log.ImportRecords(iter(parts[:1]), timeout=60).added == 0
        with pytest.raises(grpc.RpcError) as refused:
            client.log.ImportRecords(iter(parts), timeout=60)
    said = as_call(refused.value)
    assert said.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert said.details() == f"an import is limited to {IMPORT_LIMIT_BYTES} bytes; send it in parts"


def peak_mib(small_server: ServerProcess) -> int:
    lines = Path(f"/proc/{small_server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:"))
