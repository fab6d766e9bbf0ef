"""Who may read and change what: strangers, other sites, the button that cancels a job."""

from __future__ import annotations

import base64
import re

from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages, serving_pages
from tests.unit.client.dashboard.pages.samples import JOB, VIEWS


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
