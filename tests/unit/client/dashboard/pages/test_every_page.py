"""What holds for every page: JSON at the same address, hostile names, unknown addresses, a lost server."""

import contextlib
import html
import json
import math
import re

import pytest

from fractune.dashboard.views.page import Cell, moment
from fractune.features.matrix.cross_table import cell_text, model_table
from fractune.server.job_status import job_status
from fractune_core.codec.messages import to_proto
from fractune_core.errors import ServerUnreachable
from fractune_core.operators import node_text, refusal_text
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import job_script, record
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.scripted_server import ScriptedServer, serving
from tests.unit.client.dashboard.conftest import Pages, serving_pages, until
from tests.unit.client.dashboard.pages.samples import FILLED, JOB, VIEWS, Elements, another_job


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
