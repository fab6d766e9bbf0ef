"""The pages of a job and of a model."""

import html
import json
import re

import pytest

from fractune_core.codec.messages import to_proto
from fractune_core.operators import node_text, refusal_text
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Status
from tests.support.client_samples import record
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, until
from tests.unit.client.dashboard.pages.samples import JOB, Elements, another_job


def test_an_operator_has_a_page_by_its_name_or_hash(pages: Pages, server: ScriptedServer) -> None:
    tile = '[[["SamplePerfectTile",[],[],[]],["SampleCategorical",[],[],[]]],[[0,[4,8]],[1,2]]]'
    tried = [
        record("r1", job=JOB, trace=tile),
        record("r2", job=JOB, trace=f"winograd2:{tile}", run_secs=(5e-4,) * 3, measured_at=1_700_000_009.0),
        record("r3", job=JOB, status=Status.RUN_TIMEOUT, run_secs=()),
    ]
    server.records = [to_proto(each, pb.Record) for each in tried]
    server.tables = [pb.OperatorTable(operator=server.script[-1].operators[0])]
    for wanted in ("0123", "fused_conv2d"):
        found = pages.data(f"{JOB}?operator={wanted}")
        assert found["operator"]["workload_hash"] == "0123"
        assert [(each["record_id"], each["implementation"]) for each in found["schedules"]] == [
            ("r2", "winograd2"),
            ("r1", ""),
        ]
        assert found["matrix"]["subject"] == "fused_conv2d"
    page = pages.page(f"{JOB}?operator=0123").text
    assert [html.unescape(each) for each in re.findall(r"<title>(.+?)</title></circle>", page)] == [
        "500 us, winograd2: tile 4x8, choice 2",
        "1.10 ms, direct: tile 4x8, choice 2",
    ]
    assert "/log/records/r2/code?" in page
    assert "&amp;operator=0123&amp;namespace=" in page
    for wrong, complaint in (
        ("operator=zz", "operator 'zz': jobs/j1 has none"),
        ("at=cpu:7", "at 'cpu:7': jobs/j1 is"),
    ):
        refused = pages.page(f"{JOB}?{wrong}")
        assert refused.status == 404
        assert complaint in html.unescape(refused.text)


def test_a_job_of_many_trials_is_shown_before_they_are_read(
    pages: Pages, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.dashboard.following._PAGES", (1, 1))
    monkeypatch.setattr("fractune.dashboard.following._LATER", 1)
    server.records = [
        to_proto(record(f"r{number}", job=JOB, measured_at=number), pb.Record) for number in range(9, 0, -1)
    ]
    assert "more are being read" in pages.page(JOB).text
    assert [each["after_s"] for each in pages.data(JOB)["progress"]["cpu:1"]] == [1.0], "the oldest of equal ones"
    until(lambda: "more are being read" not in pages.page(JOB).text)


def test_operators_are_filtered_without_a_script(pages: Pages, server: ScriptedServer) -> None:
    job = server.script[-1]
    for number in range(8):
        added = job.operators.add()
        added.CopyFrom(job.operators[0])
        added.display_name, added.workload_hash = f"matmul{number}", f"ab{number}"

    def names(query: str) -> list[str]:
        text = pages.page(f"{JOB}?{query}").text
        return re.findall(r'data-label="operator" class="">.*?<a [^>]*>([^<]+)</a>', text)

    until(lambda: len(names("")) == 10)
    assert names("name=MATMUL3") == ["matmul3"]
    assert names("kind=convolution") == ["fused_conv2d"]
    assert names("kind=convolution&name=matmul") == []
    at_one = pages.page(f"{JOB}?at=cpu:2").text
    assert 'data-label="time cpu:2"' in at_one
    assert 'data-label="time cpu:1"' not in at_one


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


@pytest.fixture
def disturbed(server: ScriptedServer) -> None:
    """The job, by which both models of a plan are timed."""
    for each in server.script[-1].result.shares:
        each.others_cores = 0.8


@pytest.mark.usefixtures("disturbed")
def test_a_disturbed_job_and_its_model(pages: Pages, server: ScriptedServer) -> None:
    for path in ("/jobs/j1", f"/models/{server.script[-1].spec.model.partition('/')[2]}"):
        text = Elements(pages.page(path).text).text
        assert text.count("<= ") > 4
        assert "other programs had 0.80 cores at cpu:1, 0.80 cores at cpu:2 while the model was timed" in text
        assert "measured alone" not in text


@pytest.mark.usefixtures("disturbed")
def test_the_least_limit_is_the_most_that_is_needed(pages: Pages) -> None:
    found = pages.data("/fit?job=jobs/j1&rate=5/s&p99=500ms")
    assert all(each["disturbed"] for each in found["alternatives"])
    assert found["resources"].endswith("  # at most: the times were disturbed")
    text = Elements(pages.page("/fit?job=jobs/j1&rate=5/s&p99=500ms").text).text
    assert f"<= {found['alternatives'][0]['limit_m']}m" in text
    assert "other programs had 0.80 cores during the times of 1 thread and 2 threads, which are too long" in text


@pytest.mark.usefixtures("disturbed")
def test_a_plan_of_disturbed_times(pages: Pages) -> None:
    text = Elements(pages.page("/plan?job=jobs/j1&rate=300/s&p99=20ms").text).text
    assert "at most, disturbed" in text
    assert "other programs disturbed times of m: models take at most as long" in text


@pytest.mark.usefixtures("disturbed")
def test_disturbed_pairs_and_runtimes(pages: Pages, server: ScriptedServer) -> None:
    server.pairs = [to_proto(measured_pair(others_cores=0.8), pb.MeasuredPair)]
    until(lambda: len(pages.data("/pairs")["pairs"]) == 1)
    assert Elements(pages.page("/pairs").text).text.count("disturbed") >= 2
    model = server.script[-1].spec.model.partition("/")[2]
    server.runtime_times = [to_proto(runtime_time(model=model, others_cores=0.8), pb.RuntimeTime)]
    until(lambda: len(pages.data(f"/models/{model}")["runtimes"]) == 1)
    assert "Other runtimes" in Elements(pages.page(f"/models/{model}").text).text


def test_a_model_shows_what_its_operators_use_at_a_share(pages: Pages, server: ScriptedServer) -> None:
    path = f"/models/{server.script[-1].spec.model.removeprefix('models/')}"
    assert pages.data(path)["match"]["share"] == "cpu:1"
    assert pages.data(f"{path}?share=cpu:2")["match"]["operators"][0]["operator"] == "conv"
    text = pages.page(f"{path}?share=cpu:2").text
    assert "What each operator uses at cpu:2" in text
    assert "no published record" in text
    assert "share &#39;gpu&#39;" in pages.page(f"{path}?share=gpu").text


def test_a_model_shows_its_knee_as_a_curve_and_is_fitted_in_place(pages: Pages, server: ScriptedServer) -> None:
    path = f"/models/{server.script[-1].spec.model.removeprefix('models/')}"
    page = pages.page(path).text
    assert "fractune fit ./m.fractune --rate 18/s --p99 50ms --verify" in page
    knee, *_ = [json.loads(html.unescape(each)) for each in re.findall(r'data-chart="([^"]+)"', page)]
    assert [(each["label"], each["style"]) for each in knee["series"]][-2:] == [("measured", "dots"), ("knee", "dots")]
    assert [each["knee_units"] for each in pages.data(path)["knee"]] == [2]
    assert pages.data(path)["fit"] is None
    fitted = pages.page(f"{path}?rate=5/s&p99=500ms").text
    assert "--rate 5/s --p99 500ms" in fitted
    assert "limits:" in fitted
    assert pages.data(f"{path}?rate=5/s&p99=500ms")["fit"]["alternatives"]
    assert "hx-get" not in fitted, "a live page would compute it again and again"


def test_a_model_that_no_job_has_is_not_found(pages: Pages) -> None:
    assert pages.page("/models/unknown").status == 404
    assert pages.data("/models/unknown")["error"] == "NotFound"


def test_a_model_shows_its_knee_its_shapes_and_other_files_of_its_name(pages: Pages, server: ScriptedServer) -> None:
    newest = server.script[-1]
    for number, model in ((2, newest.spec.model), (3, "models/other")):
        job = pb.Job()
        job.CopyFrom(newest)
        job.name, job.spec.model = f"jobs/j{number}", model
        job.spec.inputs["ids"].dims.extend([1, 16 * number])
        server.script.append(job)
    path = f"/models/{newest.spec.model.removeprefix('models/')}"
    until(lambda: "Other files of this name" in pages.page(path).text)
    text = Elements(pages.page(path).text).text
    assert "The knee" in text
    assert "ids 1x32" in text
    assert [each["name"] for each in pages.data(path)["other_files"]] == ["jobs/j3"]
    assert "ids 1x48" in Elements(pages.page("/").text).text
