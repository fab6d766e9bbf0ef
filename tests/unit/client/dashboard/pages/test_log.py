"""The log and its records."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import VALIDATION_POLICY, Kind
from tests.support.client_samples import record
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages


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
