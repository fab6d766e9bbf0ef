"""Addresses of the pages, the elements of a page, and one more job of the scripted server."""

from html.parser import HTMLParser

from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.scripted_server import ScriptedServer

JOB = "/jobs/j1"
VIEWS = ("/", "/find?q=n", "/shares", "/log", "/compare", "/fit", "/pairs", "/plan", JOB)
"""every page without a question"""
FILLED = ("/fit?job=jobs/j1&rate=5/s&p99=500ms", "/plan?job=jobs/j1&rate=300/s", "/compare?a=jobs/j1&b=jobs/j1")
"""pages that compute what their form asks for"""


class Elements(HTMLParser):
    """The names of a page's elements, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def another_job(server: ScriptedServer, name: str, model_name: str) -> None:
    """Put a job like the newest one before all others."""
    job = pb.Job()
    job.CopyFrom(server.script[-1])
    job.name, job.model_display_name = name, model_name
    server.script.insert(0, job)
