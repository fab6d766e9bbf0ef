"""The pages of pairs, shares, plans and the log; forms, and whom the pages are for."""

import base64
import html
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from fractune.dashboard.views import planning
from fractune.local.noise_file import NOISE_FILE, advice_for, save_noise
from fractune.server.job_status import OfferedShare
from fractune_core.analysis.model_times import PairedModel
from fractune_core.analysis.noise import NoiseAdvice
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import VALIDATION_POLICY, Kind
from tests.support.client_samples import DEVICE, granted, record
from tests.support.measured_pairs import measured_pair
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, serving_pages, until
from tests.unit.client.dashboard.pages.samples import JOB, VIEWS, Elements, another_job


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


PLANNED = "/plan?job=jobs/j1&rate=300/s&p99=20ms&job=jobs/j2&rate=100/s&p99="


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
    assert {tuple(row[:3]) for row in rows[:2]} == {("0", part["share"], part["model"]) for part in parts}
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


def test_repeats_are_dots_from_the_fastest_to_the_slowest(pages: Pages, server: ScriptedServer) -> None:
    divided = replace(VALIDATION_POLICY, repeats=3, choosing=1)
    shown = record("r1", kind=Kind.VALIDATION, policy=divided, run_secs=(2e-3, 1e-3, 1.5e-3))
    server.records = [to_proto(shown, pb.Record)]
    text = pages.page("/log/records/r1").text
    assert re.findall(r'<circle class="(\w+)" cx="([\d.]+)%"', text) == [
        ("apart", "100.00"),
        ("piece0", "0.00"),
        ("piece0", "50.00"),
    ]
    assert "from 1.00 ms to 2.00 ms" in text


def test_a_record_has_all_its_fields(pages: Pages, server: ScriptedServer) -> None:
    name = server.script[-1].name
    found = pages.data(f"/log/records/r1?job={name}")
    assert found["record_id"] == "r1"
    assert "anchor_ratio" in pages.page(f"/log/records/r1?job={name}").text
    assert pages.page("/log/records/other").status == 404


def test_a_record_says_how_to_get_its_code_where_it_cannot_be_built(
    pages: Pages, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.features.log.code.can_rebuild", lambda: False)
    server.records = [to_proto(record("r1", job="an import/of 2020", namespace="acme"), pb.Record)]
    link = html.unescape(re.findall(r'href="([^"]+/code[^"]*)"', pages.page("/log/records/r1").text)[0])
    assert ("namespace=acme" in link, "job=" in link) == (True, False)
    found = pages.page(link)
    assert (found.status, "install &#39;fractune[local]&#39;" in found.text) == (200, True)
    command = "fractune log code r1 --operator 0123 --namespace acme"
    assert command in html.unescape(found.text)
    assert pages.data(link)["decisions"] == "no decisions"


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
    refusal = "this page is for this machine alone; open it as http://127.0.0.1:99/\n"
    assert pages.ask("GET", "/", host="evil.example:99").text == refusal
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


FIT = "/fit?job=jobs/j1&rate=5/s&p99=500ms"


def test_costly_pages_are_not_for_pages_of_other_sites(pages: Pages) -> None:
    for path in (FIT, "/plan?job=jobs/j1&rate=300/s", "/jobs/j1/bundle"):
        for strange in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "http://a.example"},
        ):
            refused = pages.ask("GET", path, **strange)
            assert refused.status == 403
            assert "a page of another site asks for this" in refused.text
    for own in ({"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {}):
        assert pages.ask("GET", FIT, **own).status == 200
    assert pages.ask("GET", "/fit", **{"sec-fetch-site": "cross-site"}).status == 200, "a link to it costs nothing"


def test_one_form_is_computed_at_a_time(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, find = threading.Event(), threading.Event(), planning.find_limits

    def wait(*given: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return find(*given)

    monkeypatch.setattr(planning, "find_limits", wait)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pages.page, FIT)
        assert begun.wait(30)
        for path in (FIT.replace("5/s", "6/s"), "/plan?job=jobs/j1&rate=300/s"):
            refused = pages.page(path)
            assert refused.status == 503
            assert "another form is being computed; try again in some seconds" in refused.text
        go.set()
        assert first.result().status == 200
    assert pages.page(FIT).status == 200


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
