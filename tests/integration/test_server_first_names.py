"""A server over state of before the names of docs/decisions/0021-names-in-storage.md goes on where that ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from fractune.features.log.files import read_jsonl
from fractune_core.fleet import messages, redis_names
from fractune_core.jobs import OperatorTask
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.engine.ingest import ingest_key
from fractune_server.store.models import IngestedModel
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.work_queues import WorkQueues
from tests.support import first_names
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import running_server
from tests.support.secret import SECRET


@pytest.mark.long
def test_a_job_cut_off_in_its_validation_asks_for_it_again(tmp_path: Path) -> None:
    """Its last results wait in Redis under the first names, unsigned, as does work that no worker of today can do."""
    state = tmp_path / "state"
    first_names.write_state(state)
    first_names.back_to_validation(state)
    _note_ingested(state)
    waited = list(first_names.waiting_records())
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        first_names.fill_redis(connection)
        queues = WorkQueues(connection, SECRET)
        assert queues.has(first_names.STALE_WORK)
        with running_server(url, state) as server, server.client() as client:
            wait_until(lambda: connection.llen(f"rq:queue:{redis_names.BUILD_QUEUE}"))
            kept = client.log.ListUnreadable(pb.ListUnreadableRequest(page_size=100)).results
            chosen = pb.RecordFilter(job=f"jobs/{first_names.JOB}", kind="validation")
            records = client.log.ListRecords(pb.ListRecordsRequest(filter=chosen, page_size=100)).records
            same = client.log.ListRecords(
                pb.ListRecordsRequest(filter=pb.RecordFilter(job=f"jobs/{first_names.JOB}", kind="final"))
            )
        assert len(kept) == len(waited)
        assert all("does not carry this fleet's signature" in result.reason for result in kept)
        assert same.total_size == len(records) == 20 - len(waited)
        assert connection.xpending(redis_names.SERVER_STREAM, redis_names.RECORDER)["pending"] == 0
        assert not queues.has(first_names.STALE_WORK)


def _note_ingested(state: Path) -> None:
    """As if the version of the job had lowered its model like this version, which continues only such jobs."""
    store = Store(sqlite_url(state))
    job, operators = store.jobs.get(first_names.JOB), store.jobs.operators(first_names.JOB)
    tasks = [OperatorTask(each.workload_hash, each.name, each.weight) for each in operators]
    store.models.save_ingested(ingest_key(job), IngestedModel(job.target, job.target_key, tasks))
    store.close()


@pytest.mark.parametrize(
    ("log", "kind"), [(first_names.LOG, "final"), (first_names.SCHEMA_0013 / "log.jsonl", "validation")]
)
def test_an_exported_log_is_imported(log: Path, kind: str, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["record"]["kind"] for line in lines if "record" in line} == {"trial", kind}
    with running_redis() as url, running_server(url, tmp_path / "state") as server, server.client() as client:
        answer = client.log.ImportRecords(read_jsonl(log))
        assert (answer.added, answer.already_there) == (len(lines) - 1, 0)
        records = client.log.ListRecords(pb.ListRecordsRequest(page_size=100)).records
        assert {record.kind for record in records} == {"trial", "validation"}
        assert {record.policy.name for record in records if record.kind == "validation"} == {"validation"}


@pytest.mark.parametrize("assets", [first_names.ASSETS, first_names.SCHEMA_0013], ids=lambda folder: folder.name)
def test_the_bundle_of_an_older_job_is_downloaded(assets: Path, tmp_path: Path) -> None:
    first_names.write_state(tmp_path / "state", assets)
    with running_redis() as url, running_server(url, tmp_path / "state") as server, server.client() as client:
        (job,) = client.jobs.ListJobs(pb.ListJobsRequest(page_size=10)).jobs
        assert job.state == pb.JOB_STATE_DONE
        parts = client.bundles.DownloadBundle(pb.DownloadBundleRequest(name=job.result.bundle))
        assert b"".join(part.data for part in parts) == (assets / "small.fractune").read_bytes()


def test_a_client_of_before_may_still_write_the_first_name(tmp_path: Path) -> None:
    parts = list(read_jsonl(first_names.LOG))
    for part in parts:
        if part.WhichOneof("part") == "record" and part.record.kind == "validation":
            part.record.kind = part.record.policy.name = "final"
    with running_redis() as url, running_server(url, tmp_path / "state") as server, server.client() as client:
        assert client.log.ImportRecords(iter(parts)).added == len(parts) - 1
        chosen = pb.RecordFilter(kind="final")
        records = client.log.ListRecords(pb.ListRecordsRequest(filter=chosen, page_size=100)).records
        assert {(record.kind, record.policy.name) for record in records} == {("validation", "validation")}
        assert int(pb.JOB_STATE_VALIDATING) == 4  # as before the renaming


def test_work_of_another_version_is_dropped_and_the_rest_stays() -> None:
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        first_names.fill_redis(connection)
        queues = WorkQueues(connection, SECRET)
        mine: messages.TimeModelWork = {
            "task": "time_model",
            "work_id": "mine",
            "job": "j",
            "share": "s",
            "bundle": "b",
        }
        queues.enqueue(redis_names.COMPILE_QUEUE, mine)
        queues.enqueue("compile.1", {**mine, "work_id": "of-another-protocol"})
        queues.drop_foreign()
        names = (first_names.STALE_WORK, "mine", "of-another-protocol")
        assert [queues.has(name) for name in names] == [False, True, False]
