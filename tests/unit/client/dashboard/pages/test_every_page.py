"""What holds for every page: JSON, hostile names, unknown addresses, a lost server; and the overview."""

import contextlib
import html
import json
import math
import re
import time
from collections.abc import Sequence

import pytest

from fractune.dashboard.following import Snapshot
from fractune.dashboard.views import overview
from fractune.dashboard.views.page import Cell, Page, moment
from fractune.features.matrix.cross_table import cell_text, model_table
from fractune.server.job_status import JobStatus, job_status
from fractune_core.codec.messages import timestamp, to_proto
from fractune_core.errors import ServerUnreachable
from fractune_core.operators import node_text, refusal_text
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import granted, job_script, record
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.scripted_server import ScriptedServer, serving
from tests.unit.client.dashboard.conftest import Pages, serving_pages, until
from tests.unit.client.dashboard.pages.samples import FILLED, JOB, VIEWS, Elements, another_job


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


def test_a_lost_worker_stays_and_the_job_says_that_it_waits_for_it(pages: Pages, server: ScriptedServer) -> None:
    at_one = to_proto(granted(), pb.GrantedShare)
    measurer = pb.Worker(name="workers/w1", role="measure", host="here", pid=1, state="busy", granted=at_one)
    server.script[-1].state = pb.JOB_STATE_TUNING
    server.workers = [measurer]
    until(lambda: [each["state"] for each in pages.data("/")["workers"]] == ["busy"])
    assert "waits: " not in pages.page("/").text
    server.workers = []
    until(lambda: [each["name"] for each in pages.data("/")["lost_workers"]] == ["workers/w1"])
    for path in ("/", JOB):
        assert "jobs/j1 waits: w1, which does measure at cpu:1, was last seen" in pages.page(path).text
    assert "stands still, see above" in pages.page(JOB).text
    assert "lost; last seen busy" in pages.page("/").text
    server.workers = [measurer]
    until(lambda: pages.data("/")["lost_workers"] == [])
    assert "waits: " not in pages.page(JOB).text
    work = pb.WaitingWork(role="measure", share="cpu:2", pieces=1)
    server.waiting = [work]
    until(lambda: "jobs/j1 waits: no worker does measure at cpu:2" in pages.page(JOB).text)
    work.share = "cpu:1"
    work.oldest_time.CopyFrom(timestamp(time.time() - 90))
    until(lambda: "in the queue for 1 min 3" in pages.page(JOB).text)


def test_the_whole_message_of_a_failed_job_and_a_search_for_it(pages: Pages, server: ScriptedServer) -> None:
    job = server.script[-1]
    job.state, job.error, job.message = pb.JOB_STATE_FAILED, "BadModel", f"{'no kernel ' * 40}computes CDist"
    until(lambda: pages.data("/")["jobs"][0]["state"] == "failed")
    assert job.message in Elements(pages.page("/").text).text
    assert pages.data("/find?q=cdist") == {"q": "cdist", "jobs": ["jobs/j1"], "workers": []}
    assert pages.data("/find?q=nothing")["jobs"] == pages.data("/find")["jobs"] == []


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

    def counted(seen: Snapshot, cards: Sequence[JobStatus]) -> Page:
        asked.append(seen)
        return render(seen, cards)

    monkeypatch.setattr(overview, "overview", counted)
    for _ in range(200):
        assert pages.page("/").status == 200
    assert len(asked) == len(set(map(id, asked)))  # one for each reading of the server


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


def test_a_link_gives_what_is_shown_as_json(pages: Pages) -> None:
    link = re.search(r'<footer><p><a href="([^"]+)"', pages.page("/log?order=fastest").text)
    assert link is not None
    address = html.unescape(link[1])
    assert address == "/log?order=fastest&as=json"
    assert json.loads(pages.page(address).text) == pages.data("/log?order=fastest")


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
    plain = set(Elements(pages.page("/shares").text).names)
    for path in (*VIEWS, *FILLED):
        elements = Elements(pages.page(path).text)
        assert set(elements.names) <= plain | {
            *("table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "time", "figure", "figcaption", "code"),
            *("form", "label", "input", "select", "option", "button", "section", "div", "h2", "p", "a"),
            *("pre", "fieldset", "legend", "svg", "rect", "title", "text", "details", "summary", "ul", "li", "span"),
            *("strong", "polyline"),
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


def test_jobs_are_listed_newest_first(pages: Pages, server: ScriptedServer) -> None:
    server.script[-1].message = refusal_text(17, node_text("cdist", "", "CDist"), "no kernel computes this operator")
    for number, name in ((2, "m.part1.onnx"), (3, "m.part2.onnx")):
        another_job(server, f"jobs/j{number}", name)
        server.script[0].create_time.FromSeconds(number)
        server.script[0].message = ""
    newest = ["jobs/j3", "jobs/j2", "jobs/j1"]
    until(lambda: [each["name"] for each in pages.data("/")["jobs"]] == newest)
    shown = r'<td data-label="job" class=""><a href="/(jobs/j.)">'
    assert re.findall(shown, pages.page("/").text) == newest
    assert "the tuning went on in parts: j2 (done), j3 (done)" in pages.page("/").text
    assert re.findall(shown, pages.page(JOB).text) == newest[:2]
    model = f"/models/{server.script[-1].spec.model.removeprefix('models/')}"
    assert re.findall(shown, pages.page(model).text.partition("Its jobs")[2]) == newest
    for path in ("/compare", "/fit", "/plan"):
        assert re.findall(r'<option value="(jobs/j.)">', pages.page(path).text)[:3] == newest


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
