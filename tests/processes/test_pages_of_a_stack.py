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

from fractune.cli import main, options
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
        self.skipped_shares = {"cpu:1500m": "busy"}
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
        assert ready["skipped_shares"] == {"cpu:1500m": "busy"}
        text = up.ready_text(stack, ["cpu:1"], pages, as_json=False)
        assert pages.address in text
        assert "cpu:1500m is skipped: busy\n" in text


def test_pages_that_cannot_be_served_say_why(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        reason = f"did not start: cannot listen on 127.0.0.1:{port}: it is in use"
        with pytest.raises(FractuneError, match=reason), running_pages(state, "--listen", f"127.0.0.1:{port}"):
            pytest.fail("it was served")


@pytest.mark.parametrize("default", [True, False])
def test_an_address_in_use_is_refused_before_the_stack_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, default: bool
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(options, "DEFAULT_PAGES", address)
        given = ["--dashboard"] if default else ["--dashboard-listen", address]
        assert main(["up", "--state", str(tmp_path / "state"), *given]) == 2
    assert capsys.readouterr().err == (
        f"fractune: cannot listen on {address}: it is in use, or not an address of this machine; pass "
        "--dashboard-listen HOST:PORT with another port, or 0 for a free one\n"
    )
    assert not (tmp_path / "state").exists()


def test_a_page_for_other_machines_needs_a_command_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--state", str(tmp_path / "state"), "--dashboard-listen", "0.0.0.0:0"]) == 2
    assert "--dashboard-listen 0.0.0.0:0 can be reached from other machines; use 127.0.0.1" in capsys.readouterr().err


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
