"""Every page with a time of a job marks it if other programs disturbed it."""

from __future__ import annotations

import pytest

from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, until
from tests.unit.client.dashboard.pages.samples import Elements


@pytest.fixture(autouse=True)
def disturbed(server: ScriptedServer) -> None:
    """The job, by which both models of a plan are timed."""
    for each in server.script[-1].result.shares:
        each.others_cores = 0.8


def test_a_job_and_its_model(pages: Pages, server: ScriptedServer) -> None:
    for path in ("/jobs/j1", f"/models/{server.script[-1].spec.model.partition('/')[2]}"):
        text = Elements(pages.page(path).text).text
        assert text.count("<= ") > 4
        assert "other programs had 0.80 cores at cpu:1, 0.80 cores at cpu:2 while the model was timed" in text
        assert "measured alone" not in text


def test_the_least_limit_is_the_most_that_is_needed(pages: Pages) -> None:
    found = pages.data("/fit?job=jobs/j1&rate=5/s&p99=500ms")
    assert all(each["disturbed"] for each in found["alternatives"])
    assert found["resources"].endswith("  # at most: the times were disturbed")
    text = Elements(pages.page("/fit?job=jobs/j1&rate=5/s&p99=500ms").text).text
    assert f"<= {found['alternatives'][0]['limit_m']}m" in text
    assert "other programs had 0.80 cores during the times of 1 thread and 2 threads, which are too long" in text


def test_a_plan(pages: Pages) -> None:
    text = Elements(pages.page("/plan?job=jobs/j1&rate=300/s&p99=20ms").text).text
    assert "at most, disturbed" in text
    assert "other programs disturbed times of m: models take at most as long" in text


def test_pairs_and_runtimes(pages: Pages, server: ScriptedServer) -> None:
    server.pairs = [to_proto(measured_pair(others_cores=0.8), pb.MeasuredPair)]
    until(lambda: len(pages.data("/pairs")["pairs"]) == 1)
    assert Elements(pages.page("/pairs").text).text.count("disturbed") >= 2
    model = server.script[-1].spec.model.partition("/")[2]
    server.runtime_times = [to_proto(runtime_time(model=model, others_cores=0.8), pb.RuntimeTime)]
    until(lambda: len(pages.data(f"/models/{model}")["runtimes"]) == 1)
    assert "Other runtimes" in Elements(pages.page(f"/models/{model}").text).text
