"""Pages that compute what a form asks for: two jobs compared, the least CPU limit."""

from __future__ import annotations

import html
import re

from tests.unit.client.dashboard.conftest import Pages
from tests.unit.client.dashboard.pages.samples import Elements


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
