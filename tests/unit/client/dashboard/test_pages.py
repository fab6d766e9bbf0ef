"""The pages of a scripted server: values, JSON, errors, strangers, hostile names."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import math
import re
import time
from dataclasses import asdict, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import ANY

import pytest

from fractune.dashboard.reading.following import Snapshot
from fractune.dashboard.views import overview
from fractune.dashboard.views.page import Cell, Page
from fractune.dashboard.views.words import moment
from fractune.features.matrix.cross_table import model_table
from fractune.features.matrix.table import cell_text
from fractune.local.noise_file import NOISE_FILE, advice_for, save_noise
from fractune.server.job_status import OfferedShare, job_status
from fractune_core.analysis.noise import NoiseAdvice
from fractune_core.analysis.pairs import PairedModel
from fractune_core.codec.messages import to_proto
from fractune_core.codec.times import timestamp
from fractune_core.errors import BadRequest, ServerUnreachable
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import VALIDATION_POLICY, Kind
from fractune_core.refusals import node_text, refusal_text
from tests.support.client_samples import DEVICE, granted, job_script, record
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.scripted_server import ScriptedServer, serving
from tests.unit.client.dashboard.conftest import Pages, serving_pages, until

JOB = "/jobs/j1"
PLANNED = "/plan?job=jobs/j1&rate=300/s&p99=20ms&job=jobs/j2&rate=100/s&p99="
VIEWS = ("/", "/shares", "/log", "/compare", "/fit", "/pairs", "/plan", JOB)
FILLED = ("/fit?job=jobs/j1&rate=5/s&p99=500ms", "/plan?job=jobs/j1&rate=300/s", "/compare?a=jobs/j1&b=jobs/j1")


class Elements(HTMLParser):
    """The names of a page's elements, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(autouse=True)
def ended(server: ScriptedServer) -> None:
    """The newest job is the ended one."""
    server.script = server.script[-1:]
    server.records = [to_proto(record("r1", job=server.script[-1].name), pb.Record)]


@pytest.mark.parametrize("path", [*VIEWS, *FILLED])
def test_a_view_is_a_page_and_json_at_the_same_address(pages: Pages, path: str) -> None:
    page = pages.page(path)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.text.count("<h1>") == 1
    assert isinstance(pages.data(path), dict)


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        ("text/html, application/json", True),
        ("Application/JSON ; q=0.5", True),
        ("application/json;q=0", False),
        ("application/json;q=0.000, text/html", False),
        ("application/json-seq", False),
    ],
)
def test_json_is_given_to_who_accepts_it(pages: Pages, accept: str, *, is_json: bool) -> None:
    given = pages.ask("GET", "/shares", accept=accept).headers["content-type"]
    assert given.startswith("application/json") is is_json


def test_a_page_asks_for_nothing_from_elsewhere_and_runs_no_inline_script(pages: Pages) -> None:
    page = pages.page(JOB)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://", page.text)
    assert "<script>" not in page.text
    assert not [name for name, _ in Elements(page.text).attributes if name.startswith("on")]
    assert page.headers["cache-control"] == "no-store"
    for link in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
        static = pages.page(link)
        assert (static.status, static.headers["cache-control"].split(",")[0]) == (200, "public")


def test_values_are_those_of_grpc(pages: Pages, server: ScriptedServer) -> None:
    job = job_status(server.script[-1])
    found = pages.data(JOB)
    assert found["name"] == job.name
    assert {each["share"]: each["tuned_s"] for each in found["results"]} == {
        each.share: each.tuned_s for each in job.results
    }
    text = Elements(pages.page(JOB).text).text
    table = model_table(job)
    for share in table.shares:
        for variant in table.cells:
            assert cell_text(table, variant, share) in text
    listed = pages.data("/")
    assert [each["name"] for each in listed["jobs"]] == [job.name]
    assert [each["name"] for each in listed["workers"]] == ["workers/w1"]


def test_what_waits_and_what_each_worker_does_is_shown(pages: Pages, server: ScriptedServer) -> None:
    server.workers = [pb.Worker(name="workers/w1", role="measure", host="here", pid=1, state="busy")]
    server.waiting = [
        pb.WaitingWork(role="build", pieces=3, oldest_time=timestamp(time.time() - 90)),
        pb.WaitingWork(role="measure", share="cpu:2", pieces=1),
    ]
    until(lambda: pages.data("/")["waiting"] != [])
    (building, measuring), (worker,) = (pages.data("/")[name] for name in ("waiting", "workers"))
    assert (building["role"], building["pieces"], worker["state"]) == ("build", 3, "busy")
    assert (measuring["share"], measuring["oldest_at"]) == ("cpu:2", None)
    text = Elements(pages.page("/").text).text
    assert re.search(r"build-39\d", text), text  # 90 s and some
    assert "busy" in text


def test_the_advice_of_noise_is_shown_for_the_shares_of_this_machine(server: ScriptedServer, tmp_path: Path) -> None:
    server.offered = [
        to_proto(OfferedShare(DEVICE, granted(share), 1), pb.OfferedShare) for share in ("cpu:1", "cpu:2")
    ]
    advice = NoiseAdvice(2, 1.4, builds_beside=True, tau=0.93, regret=0.012, measured_at=1.7e9)
    save_noise(tmp_path / NOISE_FILE, DEVICE.key, "cpu:1", advice)
    with serving_pages(server, advise=partial(advice_for, tmp_path)) as pages:
        assert pages.data("/shares")["advice"] == {"cpu:1": asdict(advice)}
        text = Elements(pages.page("/shares").text).text
        assert "cpu:121.4x of the fastest0.931.2 %yes" in text
        assert "cpu:211.25x of the fastest---not yet: the default" in text
        (tmp_path / NOISE_FILE).write_text("torn")
        until(lambda: "is damaged; delete it" in pages.page("/shares").text)
    with serving_pages(server) as pages:
        assert pages.data("/shares")["advice"] is None
        assert "it lies in the state folder of each machine" in pages.page("/shares").text


def test_names_of_models_workers_and_operators_are_shown_and_not_run(pages: Pages, server: ScriptedServer) -> None:
    hostile = '<script>alert("x")</script>\'"&{{7*7}}'
    job = server.script[-1]
    job.model_display_name = hostile
    job.message = hostile
    for operator in job.operators:
        operator.display_name = hostile
    server.workers[0].host = hostile
    server.records = [to_proto(record("r1", operator=hostile, job=job.name), pb.Record)]
    server.pairs = [to_proto(measured_pair(first=hostile, second=hostile, host=hostile), pb.MeasuredPair)]
    server.runtime_times = [to_proto(runtime_time(runtime=hostile, inputs={}), pb.RuntimeTime)]
    job.spec.model = server.runtime_times[0].model
    for path in (*VIEWS, *FILLED):
        page = pages.page(path)
        elements = Elements(page.text)
        assert set(elements.names) <= set(Elements(pages.page("/shares").text).names) | {
            *("table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "time", "figure", "figcaption", "code"),
            *("form", "label", "input", "select", "option", "button", "section", "div", "h2", "p", "a"),
            *("pre", "fieldset", "legend", "svg", "rect", "title", "text"),
        }
        assert "49" not in re.findall(r"\{\{|\b49\b", elements.text)
        assert elements.names.count("script") == 3
    assert hostile in Elements(pages.page("/").text).text


def test_a_name_that_looks_like_a_time_is_shown_as_it_is(pages: Pages, server: ScriptedServer) -> None:
    hostile = "@99999999999999999"
    job = server.script[-1]
    job.model_display_name = server.workers[0].host = job.operators[0].display_name = hostile
    for path in ("/", JOB):
        page = pages.page(path)
        assert page.status == 200
        assert hostile in Elements(page.text).text


@pytest.mark.parametrize("at", [0.0, 1e17, -1e17, math.inf, math.nan])
def test_a_number_that_is_no_time_is_a_dash(at: float) -> None:
    assert moment(at) == Cell("-")


def test_an_unknown_job_and_an_unknown_page_are_one_line(pages: Pages) -> None:
    for path in ("/jobs/nothing", "/nothing", "/jobs/j1/nothing"):
        page = pages.page(path)
        assert page.status == 404
        assert "Traceback" not in page.text
    assert pages.data("/jobs/nothing")["error"] == "NotFound"


@pytest.mark.parametrize("query", ["share=cpu:x", "kind=other"])
def test_a_wrong_filter_is_a_bad_request(pages: Pages, query: str) -> None:
    assert pages.page(f"/log?{query}").status == 400


def test_the_log_has_pages(server: ScriptedServer, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractune.dashboard.views.log.PAGE_SIZE", 2)
    server.records = [to_proto(record(f"r{number}"), pb.Record) for number in range(5)]
    first = pages.data("/log")
    assert [each["record_id"] for each in first["records"]] == ["r0", "r1"]
    assert [each["record_id"] for each in pages.data(f"/log?page={first['next_page']}")["records"]] == ["r2", "r3"]
    assert "next page" in pages.page("/log").text


def test_a_link_gives_what_is_shown_as_json(pages: Pages) -> None:
    link = re.search(r'<footer><p><a href="([^"]+)"', pages.page("/log?order=fastest").text)
    assert link is not None
    address = html.unescape(link[1])
    assert address == "/log?order=fastest&as=json"
    assert json.loads(pages.page(address).text) == pages.data("/log?order=fastest")


def test_repeats_are_dots_from_the_fastest_to_the_slowest(pages: Pages, server: ScriptedServer) -> None:
    divided = replace(VALIDATION_POLICY, repeats=3, choosing=1)
    shown = record("r1", kind=Kind.VALIDATION, policy=divided, run_secs=(2e-3, 1e-3, 1.5e-3))
    server.records = [to_proto(shown, pb.Record)]
    text = pages.page("/log/records/r1").text
    assert re.findall(r'<circle( class="apart")? cx="([\d.]+)"', text) == [
        (' class="apart"', "100.00"),
        ("", "0.00"),
        ("", "50.00"),
    ]
    assert 'aria-label="from 1.00 ms to 2.00 ms"' in text


def test_a_record_has_all_its_fields(pages: Pages, server: ScriptedServer) -> None:
    name = server.script[-1].name
    found = pages.data(f"/log/records/r1?job={name}")
    assert found["record_id"] == "r1"
    assert "anchor_ratio" in pages.page(f"/log/records/r1?job={name}").text
    assert pages.page("/log/records/other").status == 404


@pytest.mark.parametrize("order", ["newest", "fastest"])
def test_a_record_far_down_the_log_is_found_by_its_link(pages: Pages, server: ScriptedServer, order: str) -> None:
    server.records = [to_proto(record(f"r{number}"), pb.Record) for number in range(1100)]
    links = re.findall(r'href="(/log/records/[^"]+)"', pages.page(f"/log?order={order}&page=1050").text)
    assert len(links) == 50
    found = pages.page(html.unescape(links[-1]))
    assert found.status == 200
    assert "Record r1099" in found.text


def test_a_record_of_an_odd_job_is_shown(pages: Pages, server: ScriptedServer) -> None:
    server.records = [to_proto(record("r1", job="an import/of 2020"), pb.Record)]
    assert "an import/of 2020" in pages.page("/log").text


def test_a_server_that_does_not_answer_is_said_on_every_page(pages: Pages, server: ScriptedServer) -> None:
    assert "does not answer: " not in pages.page("/").text
    server.fail_jobs = ServerUnreachable("gone")
    until(lambda: "does not answer: gone" in pages.page("/").text)
    assert pages.data("/")["lost"] == "gone"
    assert pages.data("/")["jobs"]
    server.fail_jobs = None
    until(lambda: pages.data("/")["lost"] is None)


def test_the_pages_of_a_job_outlive_the_server_and_recover() -> None:
    views = (JOB, "/log?job=jobs/j1")
    away = "The server does not answer"
    with contextlib.ExitStack() as running:
        first = ScriptedServer()
        first.script = job_script()[-1:]
        stack = running.enter_context(contextlib.ExitStack())
        server = stack.enter_context(serving(first))
        pages = running.enter_context(serving_pages(server))
        before = {path: pages.data(path) for path in views}
        stack.close()
        until(lambda: away in pages.page("/").text)
        for path in views:
            page = pages.page(path)
            assert page.status == 200
            assert away in page.text
            assert "hx-get" in page.text
            assert pages.data(path).keys() == before[path].keys()
        unseen = pages.page("/log?job=jobs/unseen")
        assert unseen.status == 503
        assert "hx-get" in unseen.text
        again = ScriptedServer()
        again.script = first.script
        running.enter_context(serving(again, server.address))
        until(lambda: away not in pages.page("/").text)
        for path in (*views, "/log?job=jobs/unseen"):
            page = pages.page(path)
            assert page.status == 200
            assert away not in page.text


def test_a_stranger_gets_nothing(server: ScriptedServer) -> None:
    with serving_pages(server, token="secret") as pages:
        for path in (*VIEWS, "/events", "/static/page.js"):
            assert pages.page(path).status == 401
        password = base64.b64encode(b"me:secret").decode()
        assert pages.ask("GET", "/", authorization=f"Basic {password}").status == 200
        assert pages.ask("GET", "/", authorization="Bearer secret").status == 200
        for wrong in ("Basic !", "Basic ", "Bearer other", "secret", "Digest secret"):
            assert pages.ask("GET", "/", authorization=wrong).status == 401


def test_a_page_of_another_site_cannot_read_a_page_of_this_machine(pages: Pages) -> None:
    assert pages.ask("GET", "/", host="evil.example").status == 421
    assert pages.ask("GET", "/", host="127.0.0.1.evil.example").status == 421
    assert pages.ask("GET", "/", host="").status == 421
    for own in ("localhost:99", "localhost:", "LOCALHOST", "127.0.0.2:80", "[::1]", "[::1]:80"):
        assert pages.ask("GET", "/", host=own).status == 200


def test_a_refusal_is_not_kept_in_place_of_a_static_file(server: ScriptedServer) -> None:
    with serving_pages(server, token="secret") as pages:
        right = {"authorization": "Bearer secret"}
        answers = (
            pages.page("/static/page.js"),
            pages.ask("GET", "/static/none.js", **right),
            pages.ask("GET", "/static/page.js", host="evil.example", **right),
        )
        assert [each.status for each in answers] == [401, 404, 421]
        assert {each.headers["cache-control"] for each in answers} == {"no-store"}


def test_a_page_is_read_only(pages: Pages, server: ScriptedServer) -> None:
    assert pages.ask("POST", f"{JOB}/cancel").status == 403
    assert pages.ask("POST", JOB).status == 405
    assert server.cancelled == []


def test_a_job_is_cancelled_by_the_button_of_its_page_alone(server: ScriptedServer) -> None:
    server.script[-1].state = pb.JOB_STATE_TUNING
    with serving_pages(server, may_cancel=True) as pages:
        form = {"content_type": "application/x-www-form-urlencoded"}
        for wrong in ("key=guessed", "key=%C3%A9", f"key={'a' * 300}", "&".join(f"k{number}=1" for number in range(3))):
            assert pages.ask("POST", f"{JOB}/cancel", wrong, **form).status == 400
        assert server.cancelled == []
        key = re.search(r'name="key" value="([^"]+)"', pages.page(JOB).text)
        assert key is not None
        assert pages.ask("POST", f"{JOB}/cancel", f"key={key[1]}&a=1&b=2", **form).status == 400
        assert server.cancelled == []
        assert pages.ask("POST", f"{JOB}/cancel", f"key={key[1]}", **form).status == 303
        assert server.cancelled == [server.script[-1].name]


def test_tabs_hear_of_a_change_and_the_server_is_asked_once_for_all(pages: Pages, server: ScriptedServer) -> None:
    with contextlib.ExitStack() as opened:
        streams = [opened.enter_context(pages.events()) for _ in range(5)]
        for stream in streams:
            assert stream.readline() == b"event: change\n"
            assert stream.readline().startswith(b"data: ")
            assert stream.readline() == b"\n"
        until(lambda: bool(server.lists))  # the first reading is a change as well
        for stream in streams:
            assert stream.readline() == b"event: change\n"
        asked = server.lists
        server.script[-1].revision += 1
        for stream in streams:
            assert stream.readline().startswith(b"data: ")
            assert stream.readline() == b"\n"
            assert stream.readline() == b"event: change\n"
        assert server.lists - asked <= 3


def test_a_page_is_rendered_once_for_all_who_ask_until_the_server_is_read_again(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Snapshot] = []
    render = overview.overview

    def counted(seen: Snapshot) -> Page:
        asked.append(seen)
        return render(seen)

    monkeypatch.setattr(overview, "overview", counted)
    for _ in range(200):
        assert pages.page("/").status == 200
    assert len(asked) == len(set(map(id, asked)))  # one for each reading of the server


def test_a_model_shows_what_its_operators_use_at_a_share(pages: Pages, server: ScriptedServer) -> None:
    path = f"/models/{server.script[-1].spec.model.removeprefix('models/')}"
    assert pages.data(path)["match"]["share"] == "cpu:1"
    assert pages.data(f"{path}?share=cpu:2")["match"]["operators"][0]["operator"] == "conv"
    text = pages.page(f"{path}?share=cpu:2").text
    assert "What each operator uses at cpu:2" in text
    assert "no published record" in text
    assert "share &#39;gpu&#39;" in pages.page(f"{path}?share=gpu").text


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


def test_pairs_are_a_matrix_of_the_newest_and_a_table_of_all(pages: Pages, server: ScriptedServer) -> None:
    assert "no pair is in the log" in pages.page("/pairs").text
    older = measured_pair(models=tuple(replace(each, slowdown=None) for each in measured_pair().models), stp=None)
    bubble = measured_pair(models=(measured_pair().models[0], PairedModel("bubble:32MiB", "cpu:1")))
    server.pairs = [to_proto(each, pb.MeasuredPair) for each in (measured_pair(), older, bubble)]
    until(lambda: len(pages.data("/pairs")["pairs"]) == 3)
    page = pages.page("/pairs").text
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", page)]
    ratio = "1.40 (1.35 .. 1.50)"
    assert rows[:2] == [["a", "-", ratio, ratio], ["b", "1.02 (1.00 .. 1.04)", "-", "-"]]
    assert len(rows) == 2 + 5
    assert "level3" in page
    assert "level1" in page


def test_an_operator_is_chosen_by_its_name_too(pages: Pages) -> None:
    assert pages.data(f"{JOB}?operator=fused_conv2d")["progress_of"] == "0123"
    assert pages.data(f"{JOB}?operator=0123")["progress_of"] == "0123"
    assert pages.data(f"{JOB}?operator=other")["progress_of"] is None


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


def test_jobs_are_listed_newest_first(pages: Pages, server: ScriptedServer) -> None:
    server.script[-1].message = refusal_text(17, node_text("cdist", "", "CDist"), "no kernel computes this operator")
    for number, name in ((2, "m.part1.onnx"), (3, "m.part2.onnx")):
        another_job(server, f"jobs/j{number}", name)
        server.script[0].create_time.FromSeconds(number)
        server.script[0].message = ""
    newest = ["jobs/j3", "jobs/j2", "jobs/j1"]
    until(lambda: [each["name"] for each in pages.data("/")["jobs"]] == newest)
    shown = r'<td class=""><a href="/(jobs/j.)">'
    assert re.findall(shown, pages.page("/").text) == newest
    assert "the tuning went on in parts: j2 (done), j3 (done)" in pages.page("/").text
    assert re.findall(shown, pages.page(JOB).text) == newest[:2]
    model = f"/models/{server.script[-1].spec.model.removeprefix('models/')}"
    assert re.findall(shown, pages.page(model).text.partition("Its jobs")[2]) == newest
    for path in ("/compare", "/fit", "/plan"):
        assert re.findall(r'<option value="(jobs/j.)">', pages.page(path).text)[:3] == newest


def test_other_runtimes_are_lines_of_a_job_and_a_table_of_its_model(pages: Pages, server: ScriptedServer) -> None:
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
    for chart in charts:
        (line,) = [each for each in chart["series"] if each["label"] == "cpu:1, onnxruntime"]
        assert line["values"] == [1.5] * len(chart["x"])
    for path in (JOB, f"/models/{sha256}"):
        assert "onnxruntime 1.31.1" in pages.page(path).text
        assert "2.00 (1.90 .. 2.10)" in pages.page(path).text
    operator = html.unescape(pages.page(f"{JOB}?operator=0123").text)
    assert '"label": "cpu:1, onnxruntime"' not in operator


def test_an_older_server_has_no_times_of_runtimes(pages: Pages, server: ScriptedServer) -> None:
    server.fail_runtimes = BadRequest("unknown method")
    assert pages.page(JOB).status == 200
    assert pages.data(JOB)["runtimes"] == []


def test_one_job_alone_is_not_compared(pages: Pages) -> None:
    text = html.unescape(pages.page("/compare?a=jobs/j1").text)
    assert "choose the job after it, and press Show" in text
    assert re.search(r'<option selected value="jobs/j1">[^<]+, jobs/j1</option>', text)
    assert "choose two jobs, and press Show" in pages.page("/compare").text


def test_the_least_limit_for_a_rate_and_a_p99(pages: Pages) -> None:
    assert "choose a model, a rate of requests and a p99" in pages.page("/fit?job=jobs/j1").text
    asked = "/fit?job=jobs/j1&rate=5/s&p99=500ms"
    found = pages.data(asked)
    least = found["alternatives"][0]
    assert least["predicted"]["p99_s"] <= least["safe_p99_s"] <= 0.5
    assert f"cpu: {least['limit_m']}m" in found["resources"]
    text = Elements(pages.page(asked).text).text
    assert f"{least['limit_m']}m" in text
    assert "'fractune fit BUNDLE --verify'" in text
    assert f"<pre>{html.escape(found['resources'])}</pre>" in pages.page(asked).text
    for wrong, says in (
        ("rate=5/s&p99=1us", "p99"),
        ("rate=x&p99=50ms", "rate 'x'"),
        ("rate=99999/s&p99=1s", "99999"),
    ):
        refused = pages.data(f"/fit?job=jobs/j1&{wrong}")
        assert refused["alternatives"] is None
        assert says in refused["why"]
    assert pages.page("/fit?job=jobs/none").status == 404


def another_job(server: ScriptedServer, name: str, model_name: str) -> None:
    job = pb.Job()
    job.CopyFrom(server.script[-1])
    job.name, job.model_display_name = name, model_name
    server.script.insert(0, job)


def test_a_plan_is_a_picture_tables_and_json(pages: Pages, server: ScriptedServer) -> None:
    another_job(server, "jobs/j2", "n.onnx")
    found = pages.data(PLANNED)
    assert found["models"][1] == {"job": "jobs/j2", "rate": "100/s", "p99": ""}
    assert pages.data(PLANNED.replace("jobs/", "")) == {**found, "plan": ANY}, "a job's short name will do"
    assert pages.page(PLANNED.replace("jobs/", "")).text.count("<option selected") == 2 + 1 + 3, "also in the form"
    (parts,) = found["plan"]["devices"]
    assert {(part["model"], part["share"]) for part in parts} == {("m", "cpu:1"), ("n", "cpu:1")}
    page = pages.page(PLANNED).text
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", page)]
    assert {tuple(row[:4]) for row in rows[:2]} == {
        ("0", part["share"], str(part["place"]), part["model"]) for part in parts
    }
    drawn = re.findall(r'<svg x="([\d.]+)%" width="([\d.]+)%"><title>(\w), cpu:1,', page)
    assert {(float(begin), float(length), name) for begin, length, name in drawn} == {
        (50.0 * part["place"], 50.0, part["model"]) for part in parts
    }
    assert "no pair of these models is in the log" in page
    assert "assumed to lose 13 %" in page


def test_a_plan_counts_on_measured_pairs(pages: Pages, server: ScriptedServer) -> None:
    another_job(server, "jobs/j2", "n.onnx")
    server.pairs = [to_proto(measured_pair(first="m", second="n"), pb.MeasuredPair)]
    until(lambda: len(pages.data(PLANNED)["plan"]["slowdowns"]) == 2)
    assert {part["model"]: part["slowdown"] for part in pages.data(PLANNED)["plan"]["devices"][0]}["m"] == 1.4
    text = Elements(pages.page(PLANNED).text).text
    assert "Slow-downs of measured pairs" in text
    assert "1.40 (1.35 .. 1.50)" in text
    assert "x1.40 by co-runners" in text


def test_a_plan_that_cannot_be_is_a_line_on_the_page(pages: Pages, server: ScriptedServer) -> None:
    another_job(server, "jobs/j2", "<b>\n.onnx")
    assert "choose models with their rates" in pages.page("/plan").text
    for asked, says in (
        ("job=jobs/j1&rate=9", "rate &#39;9&#39;"),
        ("job=jobs/j1&rate=5/s&p99=1us", "too slow for its target"),
        ("job=jobs/j1&rate=5/s&devices=many", "devices &#39;many&#39;: write a number"),
        ("job=jobs/j1&rate=5/s&partitioning=mig", "is for GPUs"),
        ("job=jobs/j1&gpu=H100-80GB", "no time at a share of H100-80GB"),
        ("job=jobs/j1&simulate=yes", "a simulation needs rates"),
        ("job=jobs/j1&rate=5/s&job=jobs/j2", "give every model one, or none"),
    ):
        page = pages.page(f"/plan?{asked}")
        assert page.status == 200
        assert says in page.text
        assert "<b>" not in page.text
        assert pages.data(f"/plan?{asked}")["plan"] is None
    assert pages.page(f"/plan?{'job=jobs/j1&' * 9}").status == 400
    assert pages.page("/plan?job=jobs/none").status == 404


def test_a_form_of_models_has_room_for_one_more(pages: Pages) -> None:
    for asked, rows in ((0, 2), (1, 2), (2, 3), (8, 8)):
        page = pages.page(f"/plan?{'job=jobs/j1&rate=1/s&' * asked}").text
        assert len(re.findall("<legend>model ", page)) == rows
