"""The pages beside a stack: where they are, why they are not, and that they end with it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fractune.cli.commands.fleet import up
from fractune.local.programs import running_pages
from fractune.local.state import open_state, read_entry
from fractune_core.errors import FractuneError
from tests.support.processes.scripted_server import ScriptedServer, serving

ANYWHERE = ("--listen", "127.0.0.1:0")


class FakeStack:
    """Serves at an address, and breaks when it is looked at for the third time."""

    def __init__(self, address: str) -> None:
        self.address = self.own_address = address
        self.looks = 0

    def failure(self, timeout_s: float = 0.0) -> FractuneError | None:
        del timeout_s
        self.looks += 1
        return FractuneError("broken") if self.looks > 2 else None


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The folder of a stack that serves."""
    with serving(ScriptedServer()) as server, open_state(tmp_path / "state") as folder:
        folder.publish_address(server.address, for_others=True)
        yield folder.path


@pytest.fixture
def stack(state: Path) -> Any:
    entry = read_entry(state)
    assert entry is not None
    return FakeStack(entry.address)


def test_their_address_is_in_what_the_stack_prints(state: Path, stack: Any) -> None:
    with running_pages(state, *ANYWHERE) as pages:
        with closing(http.client.HTTPConnection(pages.address.split("/")[2])) as connection:
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
        ready = json.loads(up.ready_text(stack, ["cpu:1"], pages, as_json=True))
        assert ready["dashboard"] == {"address": pages.address, "token": None}
        assert pages.address in up.ready_text(stack, ["cpu:1"], pages, as_json=False)


def test_pages_that_cannot_be_served_say_why(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        reason = f"did not start: cannot listen on 127.0.0.1:{port}: it is in use"
        with pytest.raises(FractuneError, match=reason), running_pages(state, "--listen", f"127.0.0.1:{port}"):
            pytest.fail("it was served")


def test_a_stack_goes_on_and_reports_the_end_of_its_pages(
    state: Path, stack: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_pages(state, *ANYWHERE) as pages:
        pages.process.kill()
        pages.process.wait()
        assert str(up.await_failure(stack, pages)) == "broken"
    assert capsys.readouterr().err.splitlines() == [
        "fractune: the dashboard has ended, and the stack goes on: it ended with exit code -9"
    ]


def test_pages_that_do_not_end_are_killed(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractune.local.programs._END_S", 0.1)
    with running_pages(state, *ANYWHERE) as pages:
        os.kill(pages.process.pid, signal.SIGSTOP)
    assert pages.process.returncode == -signal.SIGKILL
