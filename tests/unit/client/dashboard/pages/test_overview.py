"""The overview: waiting work, busy workers, and how often the server is read for it."""

import contextlib
import re
import time
from collections.abc import Sequence

import pytest

from fractune.dashboard.following import Snapshot
from fractune.dashboard.views import overview
from fractune.dashboard.views.page import Page
from fractune.server.job_status import JobStatus
from fractune_core.codec.messages import timestamp, to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import granted
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, until
from tests.unit.client.dashboard.pages.samples import JOB, Elements


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
