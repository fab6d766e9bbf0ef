"""A target whose attributes are LLVM's command line: LLVM would run a program at each change of each pass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from fractune_core.codec.messages import to_proto
from fractune_core.fleet.blobs import put_blob, put_signed_blob
from fractune_core.fleet.messages import CandidateItem
from fractune_core.fleet.redis_names import BUILD_QUEUE, COMPILE_QUEUE, SERVER_STREAM, model_blob, workload_blob
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import build_work, ingest_work, operator_of
from tests.support.processes.cli_process import write_model
from tests.support.processes.fleet_simulated import simulated_fleet
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
