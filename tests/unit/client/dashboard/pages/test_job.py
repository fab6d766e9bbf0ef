"""A job: its operators, the jobs of its parts, other runtimes."""

from __future__ import annotations

import html
import json
import re

from fractune_core.codec.messages import to_proto
from fractune_core.operators import node_text, refusal_text
from fractune_core.pb import fractune_pb2 as pb
from tests.support.measured_pairs import runtime_time
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, until
from tests.unit.client.dashboard.pages.samples import JOB, another_job


def test_an_operator_is_chosen_by_its_name_too(pages: Pages) -> None:
    assert pages.data(f"{JOB}?operator=fused_conv2d")["progress_of"] == "0123"
    assert pages.data(f"{JOB}?operator=0123")["progress_of"] == "0123"
    assert pages.data(f"{JOB}?operator=other")["progress_of"] is None


def test_a_job_stands_beside_the_job_before_and_shows_its_message(pages: Pages, server: ScriptedServer) -> None:
    another_job(server, "jobs/j2", "m.onnx")
    server.script[0].create_time.FromSeconds(2)
    server.script[0].result.shares[0].tuned_s = 1.5e-3
    server.script[0].message = "a message"
    until(lambda: "job before" in pages.page("/jobs/j2").text)
    page = pages.page("/jobs/j2").text
    assert re.search(r'data-label="job before" class="number"><a href="/jobs/j1">2.00 ms</a>', page)
    assert "done: a message" in page
    assert "job before" not in pages.page(JOB).text


def test_a_job_that_a_client_may_go_on_with_in_parts_says_so(pages: Pages, server: ScriptedServer) -> None:
    server.script[-1].message = refusal_text(17, node_text("cdist", "", "CDist"), "no kernel computes this operator")
    until(lambda: "a client that tunes in parts goes on" in pages.page("/").text)


def test_a_job_whose_tuning_went_on_in_parts_names_their_jobs(pages: Pages, server: ScriptedServer) -> None:
    whole = server.script[-1]
    whole.message = refusal_text(17, node_text("cdist", "", "CDist"), "no kernel computes this operator")
    for number, (name, secs) in enumerate(
        (("m.part1.onnx", 2), ("n.part1.onnx", 3), ("m.onnx", 4), ("m.part2.onnx", 5)), 2
    ):
        job = pb.Job()
        job.CopyFrom(whole)
        job.name, job.model_display_name, job.message = f"jobs/j{number}", name, ""
        job.create_time.FromSeconds(secs)
        server.script.insert(0, job)
    until(lambda: "the tuning went on in parts: j2 (done)" in pages.page("/").text)
    assert pages.data(JOB)["parts"] == ["jobs/j2"]
    assert "Jobs of its parts" in pages.page(JOB).text
    assert pages.data("/jobs/j4")["parts"] == []


def test_other_runtimes_stand_beside_the_model_and_not_beside_sums_of_operators(
    pages: Pages, server: ScriptedServer
) -> None:
    sha256 = "ab" * 32
    job = server.script[-1]
    job.spec.model = f"models/{sha256}"
    job.spec.inputs["ids"].dims.extend([1, 16])
    job.operators[0].best_s.clear()
    older = runtime_time("1" * 32, loop_s=9e-3)
    other_shape = runtime_time("2" * 32, inputs={"ids": [1, 32]}, loop_s=5e-3)
    server.runtime_times = [to_proto(each, pb.RuntimeTime) for each in (runtime_time(), other_shape, older)]
    until(lambda: pages.data(JOB)["model"] == job.spec.model)
    assert [each["loop_s"] for each in pages.data(JOB)["runtimes"]] == [1.5e-3]
    assert [each["loop_s"] for each in pages.data(f"/models/{sha256}")["runtimes"]] == [1.5e-3, 5e-3]
    page = pages.page(JOB).text
    charts = [json.loads(html.unescape(each)) for each in re.findall(r'data-chart="([^"]+)"', page)]
    assert len(charts) == 2
    assert all({each["label"] for each in chart["series"]} == {"cpu:1", "cpu:2"} for chart in charts)
    assert all(chart["isLog"] for chart in charts)
    for path in (JOB, f"/models/{sha256}"):
        assert "onnxruntime 1.31.1" in pages.page(path).text
        assert "2.00 (1.90 .. 2.10)" in pages.page(path).text
