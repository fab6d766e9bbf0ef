"""Traces of a job, as a collector gets them: from a whole stack, and from a server whose workers know of none."""

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune_core.fleet.messages import WORK_KINDS
from tests.support.processes.cli_process import events, run_fractune, write_model
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.otlp_receiver import OtlpReceiver, Span, otlp_receiver
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import model_bytes, running_server

PARENTS = {
    "job": {""},
    "ingest": {"job"},
    "search": {"job"},
    "build": {"search", "job"},  # those of a validation are the server's own
    "measure": {"build"},
    "record": {"measure"},
    "compile": {"job"},
    "time_model": {"job"},
}
"""by the name of a span, those of its parents"""
ATTRIBUTES = {"job", "work", "operator", "share", "candidates", "records"}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        yield running


def work_in_logs(state: Path) -> Counter[str]:
    """How many pieces of work the workers say that they have done, by kind."""
    text = "".join(path.read_text() for path in (state / "logs").glob("*.log"))
    return Counter(re.findall(rf"\b({'|'.join(WORK_KINDS)}) took ", text))


def parents(spans: list[Span]) -> dict[str, set[str]]:
    names = {span.own: span.name for span in spans} | {"": ""}
    return {kind: {names[span.parent] for span in spans if span.name == kind} for kind in PARENTS}


@pytest.mark.long
def test_a_job_of_a_stack_is_one_trace_with_a_span_for_each_piece_of_work(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    state, model = tmp_path / "state", write_model(tmp_path / "confidential.onnx")
    args = ("--shares", "cpu:1", "--trials", "12", "--compete", "none", "--json", "--state", str(state))
    ended = run_fractune("tune", str(model), *args, "--out-dir", str(tmp_path), env=receiver.environ)
    job = events(ended)[-1]["job"]

    spans = receiver.spans()
    counts = Counter(span.name for span in spans)
    assert {kind: counts[kind] for kind in WORK_KINDS} == dict(work_in_logs(state))
    assert counts["job"] == 1
    assert parents(spans) == PARENTS
    assert len({span.own for span in spans}) == len(spans)
    assert len({span.trace for span in spans}) == 1
    assert {span.attributes["fractune.job"] for span in spans} == {job.removeprefix("jobs/")}
    assert {span.service for span in spans} == {"fractune-server", "fractune-worker"}

    with sqlite3.connect(f"file:{state / 'fractune.db'}?mode=ro", uri=True) as log:
        (records,) = log.execute("SELECT count(*) FROM records").fetchone()
    log.close()
    assert sum(span.attributes["fractune.records"] for span in spans if span.name == "record") == records
    assert sum(span.attributes["fractune.candidates"] for span in spans if span.name == "measure") == records

    assert {name for span in spans for name in span.attributes} == {f"fractune.{name}" for name in ATTRIBUTES}
    secret = (state / "secret").read_bytes().strip()
    for body in receiver.bodies:
        assert b"confidential" not in body
        assert secret not in body


def test_workers_that_know_of_no_traces_do_the_work_all_the_same(
    receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in receiver.environ.items():
        monkeypatch.setenv(name, value)
    with running_redis() as url, simulated_fleet(url), running_server(url, tmp_path / "state") as server:
        with server.client() as client:
            ended = client.finish(client.create(client.upload(model_bytes(("conv", 1))), trials=16).name)
        assert ended.progress.candidates_done == 16
        wait_until(lambda: any(span.name == "job" for span in receiver.spans()))
    spans = receiver.spans()
    (job,) = (span for span in spans if span.name == "job")
    assert {span.name for span in spans} == {"job", "record"}
    assert {span.parent for span in spans if span.name == "record"} == {job.own}
    assert job.attributes == {"fractune.job": ended.name.removeprefix("jobs/")}
    assert job.began <= min(span.began for span in spans)
