"""The page of a plan."""

from __future__ import annotations

import re
from unittest.mock import ANY

from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.measured_pairs import measured_pair
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, until
from tests.unit.client.dashboard.pages.samples import Elements, another_job

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
