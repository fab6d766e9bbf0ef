import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fractune.dashboard.app import Advise, Site
from fractune.dashboard.guard import GuardOptions
from fractune.dashboard.serving import PageServer
from fractune.features.client import Client
from tests.support.processes.scripted_server import ScriptedServer

_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Pages:
    """A dashboard of a scripted server, over real HTTP."""

    port: int

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_DEADLINE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def page(self, path: str) -> Answer:
        return self.ask("GET", path)

    def data(self, path: str) -> Any:
        return self.ask("GET", path, accept="application/json").json

    @contextmanager
    def events(self) -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=_DEADLINE_S)) as connection:
            connection.request("GET", "/events")
            with connection.getresponse() as stream:
                yield stream


@contextmanager
def serving_pages(
    server: ScriptedServer, *, token: str = "", may_cancel: bool = False, advise: Advise | None = None
) -> Iterator[Pages]:
    with socket.socket() as bound, Client(server.address) as client:
        bound.bind(("127.0.0.1", 0))
        site = Site(client, GuardOptions(is_loopback=True, token=token), may_cancel=may_cancel, advise=advise)
        running = PageServer(site)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            until(lambda: running.started)
            yield Pages(bound.getsockname()[1])
        finally:
            running.should_exit = True
            thread.join()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pages(server: ScriptedServer) -> Iterator[Pages]:
    with serving_pages(server) as found:
        yield found
