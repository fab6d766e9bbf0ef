"""Targets whose attributes are LLVM's command line, and TVMScript that would run Python: both are refused."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from fractune.server.rpc import RpcClient
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadModel
from fractune_core.files.fused import write_fused
from fractune_core.files.model_files import SCRIPT_REFUSED
from fractune_core.fleet.blobs import put_blob, put_signed_blob
from fractune_core.fleet.messages import CandidateItem
from fractune_core.fleet.redis_names import BUILD_QUEUE, COMPILE_QUEUE, SERVER_STREAM, model_blob, workload_blob
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import build_work, ingest_work, operator_of
from tests.support.hostile_scripts import NAMES, hostile_script
from tests.support.processes.cli_process import error_line, run_fractune, write_model
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.fleet_simulated import SimulatedWorker, simulated_fleet
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.processes.server_process import Client, as_call, model_bytes, running_server
from tests.support.processes.worker_processes import matmul_workload, worker
from tests.support.samples import validation
from tests.support.secret import SECRET


def running(program: Path, **more: Any) -> str:
    options = ["-print-changed:int=3", f"-print-changed-diff-path:string={program}"]
    return json.dumps({"kind": "llvm", **more, "cl-opt": options})


@pytest.fixture
def program(tmp_path: Path) -> Path:
    made = tmp_path / "program"
    made.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    made.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    state = tmp_path_factory.mktemp("targets") / "state"
    with running_redis() as url, simulated_fleet(url), running_server(url, state) as server, server.client() as client:
        yield client


def imported(target: str) -> Iterator[pb.ImportRecordsRequest]:
    record = TuningRecord.from_json({**validation('["x"]', 1, 1.0).to_json(), "record_id": "r", "target": target})
    yield pb.ImportRecordsRequest(record=to_proto(record, pb.Record))


CALLS: dict[str, Callable[[Client, str, str], object]] = {
    "a job": lambda client, model, target: client.create(model, target=target),
    "a match": lambda client, model, target: client.log.MatchModel(
        pb.MatchModelRequest(model=model, share="cpu:1", target=target)
    ),
    "a table": lambda client, model, target: client.log.TabulateModel(
        pb.TabulateModelRequest(model=model, shares=["cpu:1"], target=target)
    ),
    "an import": lambda client, _, target: client.log.ImportRecords(imported(target)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_server_refuses_it_before_anything_is_done(
    client: Client, program: Path, call: Callable[[Client, str, str], object]
) -> None:
    model = client.upload(model_bytes(("op", 1)))
    with pytest.raises(grpc.RpcError) as refused:
        call(client, model, running(program))
    error = as_call(refused.value)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "a target of the kind llvm has no 'cl-opt'" in (error.details() or "")
    assert not client.jobs.ListJobs(pb.ListJobsRequest()).jobs


def test_a_worker_that_is_given_it_refuses_it_too(tmp_path: Path, program: Path) -> None:
    """As by a server of another version, or a child that reads models and was taken over."""
    workload, target = matmul_workload(64), running(program)
    build = build_work(operator_of(workload, target), [CandidateItem("c", "")], work_id="b")
    model = write_model(tmp_path / "small.onnx").read_bytes()
    digest = hashlib.sha256(model).hexdigest()
    ingest = ingest_work(digest, work_id="i", target=target)
    with (
        running_redis() as url,
        worker("builder", "build", url, tmp_path / "gate"),
        worker("compiler", "compile", url, tmp_path / "gate"),
    ):
        connection = redis.Redis.from_url(url)
        put_signed_blob(connection, SECRET, workload_blob(workload["hash"]), workload["json"].encode())
        put_blob(connection, model_blob("default", digest), model)
        queues = WorkQueues(connection, SECRET)
        queues.enqueue(BUILD_QUEUE, build)
        queues.enqueue(COMPILE_QUEUE, ingest)
        ran = tmp_path / "ran"
        wait_until(lambda: len(_failures(connection)) == 2 or ran.exists(), 120)
        failed = _failures(connection)
        connection.close()
    assert not ran.exists()
    assert {each["task"] for each in failed} == {"build", "ingest"}
    assert all("a target of the kind llvm has no 'cl-opt'" in each["message"] for each in failed), failed


def _failures(connection: redis.Redis) -> list[dict[str, Any]]:
    return [each for each in events_of(connection, SERVER_STREAM) if each["event"] == "work_failed"]


TARGET = '{"kind":"llvm","mcpu":"x86-64-v3","num-cores":1}'

SCRIPT = """
import sys
from tvm.script import ir as I
from tvm.script import relax as R
print("the script says hello")
__import__("pathlib").Path(sys.argv[0]).with_name("ran").touch()

@I.ir_module
class Net:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        y: R.Tensor((2, 8), "float32") = R.nn.relu(x)
        return y

if __name__ == "__main__":
    raise SystemExit("this is for python3 net.py alone")
"""


@dataclass(frozen=True)
class Place:
    """A server with a compile worker, and clients that do not look at what they send."""

    address: str
    rpc: RpcClient
    stubs: Client

    def sneak_in(self, payload: bytes, name: str) -> str:
        """Upload byte by byte at first, so that the server does not see what it gets; the model's resource name."""
        digest = hashlib.sha256(payload).hexdigest()
        header = pb.ModelHeader(display_name=name, sha256=digest, size_bytes=len(payload))
        parts = [pb.UploadModelRequest(header=header)]
        parts += [pb.UploadModelRequest(data=part) for part in (payload[:1], payload[1:])]
        return self.stubs.models.UploadModel(iter(parts)).name

    def refusal_by_the_worker(self, model: str) -> str:
        """What a call says for which a worker reads the model."""
        with pytest.raises(BadModel) as refused:
            self.rpc.match_model(pb.MatchModelRequest(model=model, share="cpu:1", loosest="robust"))
        assert refused.value.exit_code == 3
        return str(refused.value)


@contextlib.contextmanager
def measurer(url: str) -> Iterator[None]:
    """Somebody who offers the share that is asked for."""
    worker = SimulatedWorker(url, "measure", "measure-1", "cpu:1")
    worker.target = TARGET
    worker.start()
    try:
        yield
    finally:
        worker.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("fleet")
    with (
        running_redis() as url,
        measurer(url),
        fleet_of_processes(url, folder, ("--role", "compile"), others=1) as address,
        RpcClient(address) as client,
        Client(address) as stubs,
    ):
        yield Place(address, client, stubs)


def test_there_are_as_many_scripts_as_were_tried() -> None:
    assert len(NAMES) == 22


@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs_neither_in_the_server_nor_in_a_worker(place: Place, tmp_path: Path, name: str) -> None:
    canary, script = tmp_path / "canary", tmp_path / "m.py"
    script.write_text(hostile_script(name, canary))
    with pytest.raises(BadModel) as refused:
        place.rpc.upload_model(script)
    assert (str(refused.value), refused.value.exit_code) == (f"m.py: {SCRIPT_REFUSED}", 3)
    model = place.sneak_in(script.read_bytes(), script.name)
    said = place.refusal_by_the_worker(model)
    assert not canary.exists()
    assert said == f"m.py: {SCRIPT_REFUSED}"


def test_a_script_in_a_fused_model_does_not_run(place: Place, tmp_path: Path) -> None:
    canary, script, fused = (tmp_path / name for name in ("canary", "script.onnx", "all.fused"))
    script.write_text(hostile_script(NAMES[0], canary))
    with fused.open("wb") as file:
        write_fused(file, ["good", "bad"], [write_model(tmp_path / "good.onnx"), script], 2)
    model = place.rpc.upload_model(fused).name
    assert place.refusal_by_the_worker(model) == f"all.fused: variant 'bad': {SCRIPT_REFUSED}"
    assert not canary.exists()


def test_the_command_asks_for_consent_before_it_runs_a_script(place: Place, tmp_path: Path) -> None:
    script, ran = tmp_path / "net.py", tmp_path / "ran"
    script.write_text(SCRIPT)
    asked = ("match", str(script), "--share", "cpu:1", "--server", place.address, "--json")
    refused = run_fractune(*asked)
    assert (refused.returncode, "--run-script" in error_line(refused), ran.exists()) == (3, True, False)

    done = run_fractune(*asked, "--run-script")
    assert done.returncode == 0, done.stderr
    announced, said = done.stderr.splitlines()
    assert announced == "net.py: running this file's Python code on this machine, to get its IRModule"
    assert said == "the script says hello"
    assert ran.exists()
    assert "relu" in json.loads(done.stdout)["operator"]
