"""The pages in a real Chromium, of a real stack that tunes and of a scripted server."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from fractune.features.client import Client
from fractune.features.matrix.cross_table import cell_text, model_table
from fractune.server.job_status import OfferedShare
from fractune_core.codec.messages import to_proto
from fractune_core.errors import ServerUnreachable
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import DEVICE, granted, job_script, record
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.cli_process import await_event, run_fractune, start_fractune, stopped_at_end, write_model
from tests.support.processes.redis_process import wait_until
from tests.support.processes.scripted_server import ScriptedServer, serving
from tests.unit.client.dashboard.conftest import serving_pages

if TYPE_CHECKING:  # its import takes a fifth of a second of every run
    from playwright.sync_api import APIResponse, Browser, Page, Route

PATHS = (
    *("", "find?q=n", "jobs/j1", "jobs/j1?operator=0123", "models/ab", "shares", "log", "log/records/r1"),
    *("jobs/j1?kind=convolution", "models/ab?rate=5/s&p99=500ms", "log/records/r1/code"),
    *("compare", "compare?a=jobs/j1&b=jobs/j2", "fit", "fit?job=jobs/j1&rate=5/s&p99=500ms", "pairs"),
    *("plan", "plan?job=jobs/j1&rate=300/s&p99=20ms&job=jobs/j2&rate=100/s&p99="),
)
"""every view, empty and filled"""
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of code says why there is none: the scripted server has no program to build."""
    monkeypatch.setattr("fractune.features.log.code.can_rebuild", lambda: False)


@contextlib.contextmanager
def full_server(text: str = "n") -> Iterator[ScriptedServer]:
    """It has something for every view, with `text` wherever a stranger may write one."""
    with serving(ScriptedServer()) as server:
        job, other = server.script = [pb.Job(), *job_script()[-1:]]
        job.CopyFrom(other)
        job.name, job.model_display_name, job.message = "jobs/j2", f"{text}.onnx", text
        for operator in other.operators:
            operator.display_name = text
        server.workers[0].host = server.workers[0].role = text
        server.records = [to_proto(record("r1", job="jobs/j1", operator=text, worker=text), pb.Record)]
        server.pairs = [to_proto(measured_pair(first="m", second=text, host=text, verdict=text), pb.MeasuredPair)]
        server.runtime_times = [to_proto(runtime_time(model="ab", inputs={}, runtime=text, host=text), pb.RuntimeTime)]
        offered = OfferedShare(replace(DEVICE, label=text), granted(), 1)
        server.offered = [to_proto(offered, pb.OfferedShare)]
        yield server


@contextlib.contextmanager
def watched_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """A tab that may ask loopback alone, and whose console stays empty."""
    said: list[str] = []
    context = browser.new_context(**options)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if "//127.0.0.1:" not in request.url else None)
    yield page
    context.close()
    assert said == []


def test_a_job_is_followed_to_its_end(browser: Browser, tmp_path: Path) -> None:
    model, state = write_model(tmp_path / "small.onnx"), tmp_path / "state"
    with stopped_at_end(
        start_fractune("up", "--shares", "cpu:1", "--state", str(state), "--listen", "127.0.0.1:0", "--json")
    ) as stack:
        await_event(stack, event="ready")
        shown = start_fractune("dashboard", "--state", str(state), "--listen", "127.0.0.1:0", "--json")
        with stopped_at_end(shown) as dashboard, watched_page(browser) as page:
            address = str(await_event(dashboard, event="ready")["address"])
            page.goto(address)
            assert page.get_by_text("no job is running").is_visible()
            job = run_fractune(
                *("tune", str(model), "--shares", "cpu:1", "--trials", "4", "--state", str(state), "--detach")
            ).stdout.strip()
            page.get_by_role("link", name=job.removeprefix("jobs/")).first.wait_for(timeout=60_000)
            page.goto(f"{address}jobs/{job.removeprefix('jobs/')}")
            page.get_by_role("heading", name="Tuned at x run at").wait_for(timeout=120_000)
            with contextlib.closing(Client(json.loads(page_json(page, address))["server"])) as client:
                table = model_table(client.job(job).status())
            text = page.locator("main").inner_text()
            for variant in table.cells:
                assert re.sub(r"\s+", " ", cell_text(table, variant, "cpu:1")) in re.sub(r"\s+", " ", text)
            assert page.locator("figure.chart canvas").count() == 2


def page_json(page: Page, address: str) -> str:
    return str(page.request.get(address, headers={"Accept": "application/json"}).text())


def test_a_lost_server_shows_a_banner_and_comes_back(browser: Browser) -> None:
    with serving(ScriptedServer()) as server:
        server.script = job_script()[-1:]
        with serving_pages(server) as pages, watched_page(browser) as first, watched_page(browser) as second:
            for page in (first, second):
                page.goto(f"http://127.0.0.1:{pages.port}/")
            server.fail_jobs = ServerUnreachable("gone")
            for page in (first, second):
                page.get_by_text("The server does not answer: gone").wait_for(timeout=10_000)
            server.fail_jobs = None
            for page in (first, second):
                page.get_by_text("The server does not answer").wait_for(state="detached", timeout=10_000)


def test_a_job_that_was_opened_while_the_server_was_away_appears(browser: Browser) -> None:
    away = ServerUnreachable("gone")
    with serving(ScriptedServer()) as server:
        server.script = job_script()[-1:]
        with serving_pages(server) as pages, contextlib.closing(browser.new_context()) as context:
            server.fail_jobs = server.fail_get = away
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{pages.port}/jobs/j1")
            page.get_by_text("This did not work").wait_for(timeout=10_000)
            server.fail_jobs = server.fail_get = None
            page.get_by_role("heading", name="Tuned at x run at").wait_for(timeout=10_000)


def show_tab(page: Page, *, hidden: bool) -> None:
    """As if the reader had turned to the tab, or away from it."""
    page.evaluate(
        "is => { Object.defineProperty(document, 'hidden', {value: is, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')) }",
        hidden,
    )


def test_tabs_that_are_hidden_leave_connections_to_others_and_catch_up(browser: Browser) -> None:
    with serving(ScriptedServer()) as server:
        server.script = job_script()[-1:]
        with serving_pages(server) as pages, contextlib.closing(browser.new_context()) as context:
            tabs = [context.new_page() for _ in range(8)]
            for tab in tabs:
                with tab.expect_response("**/events", timeout=20_000):
                    tab.goto(f"http://127.0.0.1:{pages.port}/", timeout=20_000)
                show_tab(tab, hidden=True)
            server.workers[0].name = "workers/renamed"
            show_tab(tabs[0], hidden=False)
            tabs[0].get_by_text("renamed").wait_for(timeout=10_000)


def test_a_change_that_comes_while_a_page_is_asked_for_is_shown(browser: Browser) -> None:
    with serving(ScriptedServer()) as server, serving_pages(server) as pages, watched_page(browser) as page:
        server.script = job_script()[-1:]
        page.add_init_script(
            "let count = 0; const listen = EventSource.prototype.addEventListener;"
            "EventSource.prototype.addEventListener = function (name, heard) { listen.call(this, name,"
            " event => { heard(event); document.documentElement.dataset.changes = ++count }) }"
        )
        held: list[tuple[Route, APIResponse]] = []

        def hold_first(route: Route) -> None:
            if "hx-request" in route.request.headers and not held:
                held.append((route, route.fetch()))
            else:
                route.continue_()

        page.route("**/", hold_first)
        page.goto(f"http://127.0.0.1:{pages.port}/")
        page.locator("[data-changes='1']").wait_for()
        server.workers[0].name = "workers/renamed"
        page.locator("[data-changes='2']").wait_for()
        ((route, former),) = held
        route.fulfill(response=former)
        page.get_by_text("renamed").wait_for(timeout=10_000)


def test_names_are_text_and_tables_need_no_script(browser: Browser) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    with full_server(hostile) as server, serving_pages(server) as pages:
        for with_scripts in (True, False):
            with watched_page(browser, java_script_enabled=with_scripts) as page:
                page.on("dialog", lambda _: pytest.fail("a name was run"))
                for path in PATHS:
                    page.goto(f"http://127.0.0.1:{pages.port}/{path}")
                    assert page.locator("img").count() == 0
                    assert page.get_by_text(hostile).count() > 0, path


def test_a_plan_is_made_by_the_form_without_a_script(browser: Browser) -> None:
    with (
        full_server() as server,
        serving_pages(server) as pages,
        watched_page(browser, java_script_enabled=False) as page,
    ):
        page.goto(f"http://127.0.0.1:{pages.port}/plan")
        for number, (job, rate) in enumerate((("jobs/j1", "300/s"), ("jobs/j2", "100/s"))):
            page.get_by_role("combobox", name="model").nth(number).select_option(job)
            page.get_by_role("textbox", name="requests").nth(number).fill(rate)
        page.get_by_role("button", name="Show").click()
        picture = page.get_by_role("img", name="device 0: ")
        widths = [piece.bounding_box() for piece in picture.locator("svg").all()]
        whole = picture.bounding_box()
        assert whole is not None
        assert [each["width"] for each in widths if each] == [pytest.approx(whole["width"] / 2, rel=0.02)] * 2
        table = page.get_by_role("region", name="Parts of devices").locator("tbody")
        assert sorted(row.locator("td").nth(2).inner_text() for row in table.locator("tr").all()) == ["m", "n"]
        assert page.get_by_role("region", name="Slow-downs of measured pairs").locator("tbody tr").count() == 2


@pytest.mark.parametrize("width", [360, 1100, 1600])
def test_neither_a_page_nor_a_table_scrolls_sideways(browser: Browser, width: int) -> None:
    wider = "[...document.querySelectorAll('.wide')].filter(each => each.scrollWidth > each.clientWidth + 1).length"
    with (
        full_server("a_long_name_" * 20) as server,
        serving_pages(server) as pages,
        watched_page(browser, viewport={"width": width, "height": 760}) as page,
    ):
        for path in PATHS:
            page.goto(f"http://127.0.0.1:{pages.port}/{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert page.evaluate(wider) == 0, path


def test_the_first_screen_of_a_job_says_how_fast_it_is_and_where_the_time_goes(browser: Browser) -> None:
    """Without scrolling, and the curves under it."""
    with (
        full_server() as server,
        serving_pages(server) as pages,
        watched_page(browser, viewport={"width": 1100, "height": 760}) as page,
    ):
        page.goto(f"http://127.0.0.1:{pages.port}/jobs/j1")
        shown = [
            page.get_by_text("least core time"),
            page.get_by_role("region", name="How fast").locator("tr").last,
            page.get_by_role("img", name="cpu:2: ").first,
        ]

        def ends() -> list[float]:
            return [box["y"] + box["height"] for each in shown if (box := each.bounding_box())]

        # An element has no box while the page puts a newer one in its place.
        wait_until(lambda: len(found := ends()) == len(shown) and max(found) < 760)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_from_using_a_page(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    """As far as axe-core finds it: contrast, labels, landmarks, the order of headings."""
    from axe_playwright_python.sync_playwright import Axe

    with full_server() as server, serving_pages(server) as pages:
        context = browser.new_context(color_scheme=scheme, bypass_csp=True)  # its program is put into the page
        page = context.new_page()
        for path in (*PATHS, "nothing"):
            page.goto(f"http://127.0.0.1:{pages.port}/{path}")
            assert Axe().run(page).response["violations"] == [], path
        page.set_content("<img src='x'>")
        assert Axe().run(page).violations_count > 0
        context.close()
