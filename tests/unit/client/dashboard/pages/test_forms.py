"""Pages that compute what a form asks for: two jobs compared, the least CPU limit."""

from __future__ import annotations

import html
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fractune.dashboard.views import fitting
from tests.unit.client.dashboard.conftest import Pages
from tests.unit.client.dashboard.pages.samples import Elements

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
    begun, go, find = threading.Event(), threading.Event(), fitting.find_limits

    def wait(*given: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return find(*given)

    monkeypatch.setattr(fitting, "find_limits", wait)
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
