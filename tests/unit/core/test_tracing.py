"""Traces: where a span belongs, what asks for them, and that nothing happens unasked."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from fractune_core import tracing
from tests.support.processes.otlp_receiver import OtlpReceiver, Span, otlp_receiver

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
IMPORTED = """
import sys
from fractune_core import tracing
with tracing.traces("test"), tracing.span("build", "", "job1", work="w"):
    tracing.note_job("job1", 0.0, 1.0)
    tracing.note("record", "", "job1", 0.0, 1.0, records=1)
    assert tracing.current("job1") == ""
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
import fractune_server.main, fractune_workers.main  # redis-py loads OpenTelemetry's metrics where they are
assert not [name for name in sys.modules if name.startswith(("opentelemetry.exporter", "opentelemetry.sdk.trace"))]
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    monkeypatch.setattr(tracing, "_FLUSH_S", 30.0)  # a busy machine may take longer than a process that ends waits
    with otlp_receiver() as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


def by_name(receiver: OtlpReceiver) -> dict[str, Span]:
    return {span.name: span for span in receiver.spans()}


def test_unasked_nothing_is_imported_and_nothing_happens() -> None:
    subprocess.run([sys.executable, "-c", IMPORTED], check=True)


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({ENDPOINT: "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({ENDPOINT: ""}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://c:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, False),
        ({"OTEL_SDK_DISABLED": "true", ENDPOINT: "http://c:4318"}, False),
    ],
)
def test_what_asks_for_traces(environ: dict[str, str], wanted: bool) -> None:  # noqa: FBT001
    assert tracing._wanted(environ) is wanted


def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    asked = {ENDPOINT: "http://c:4318"}
    with tracing.traces("test", {**asked, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}):
        assert tracing.current("job1") == ""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # as without the extra
    with tracing.traces("test", asked):
        assert tracing.current("job1") == ""
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "no traces",
        "no traces, though OpenTelemetry's variables ask for them",
    ]


def test_spans_of_several_processes_are_one_trace_of_their_job(receiver: OtlpReceiver) -> None:
    began = time.time()
    with tracing.traces("server"):
        sent = tracing.current("job1")
    with tracing.traces("worker"), tracing.span("search", sent, "job1", work="w1", operator="conv2d", candidates=8):
        caused = tracing.current("job1")
    with tracing.traces("worker"), tracing.span("build", caused, "job1", work="w2"):
        pass
    with tracing.traces("server"):
        tracing.note(tracing.RECORD, "", "job1", began, began + 1, records=3)
        tracing.note_job("job1", began, began + 2)
    spans = by_name(receiver)
    assert len({span.trace for span in spans.values()}) == 1
    job, search = spans["job"], spans["search"]
    assert (job.parent, search.parent, spans["build"].parent, spans["record"].parent) == (
        "",
        job.own,
        search.own,
        job.own,
    )
    assert search.attributes == {
        "fractune.job": "job1",
        "fractune.work": "w1",
        "fractune.operator": "conv2d",
        "fractune.candidates": 8,
    }
    assert spans["record"].attributes == {"fractune.job": "job1", "fractune.records": 3}
    assert (round(job.ended - job.began, 3), search.service) == (2.0, "worker")
    assert tracing.current("job1") == ""


def test_a_job_is_in_the_sample_whole_or_not_at_all(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    with tracing.traces("server"):
        for number in range(40):
            job = f"job{number}"
            with tracing.span("search", tracing.current(job), job), tracing.span("build", tracing.current(job), job):
                pass
            tracing.note_job(job, 1.0, 2.0)
    spans = receiver.spans()
    jobs = {span.attributes["fractune.job"] for span in spans if span.name == "job"}
    assert 5 < len(jobs) < 35
    assert len(spans) == 3 * len(jobs)
    assert {span.attributes["fractune.job"] for span in spans} == jobs


def test_a_torn_parent_is_no_parent(receiver: OtlpReceiver) -> None:
    with tracing.traces("worker"), tracing.span("build", "garbage", "job1"):
        pass
    assert by_name(receiver)["build"].parent == ""


def test_a_collector_that_is_gone_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "5")
    monkeypatch.setattr(tracing, "_FLUSH_S", 0.2)
    before = set(threading.enumerate())
    with tracing.traces("worker"):
        tracing.note_job("job1", 1.0, 2.0)
        began = time.monotonic()
    assert time.monotonic() - began < 3, "the exporter goes on for five seconds"
    for exporter in set(threading.enumerate()) - before:  # which would draw its waits from the next test's `random`
        exporter.join(30)
        assert not exporter.is_alive()
