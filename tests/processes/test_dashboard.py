"""`fractune dashboard` as a process, and the pages beside a stack."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
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
from tests.support.client_samples import job_script
from tests.support.processes.cli_process import await_event, error_line, run_fractune, start_fractune, stopped_at_end
from tests.support.processes.redis_process import wait_until
from tests.support.processes.scripted_server import ScriptedServer, serving


def read(where: str, **headers: str) -> bytes:
    with contextlib.closing(http.client.HTTPConnection(where, timeout=30)) as connection:
        connection.request("GET", "/", headers=headers)
        return connection.getresponse().read()


def test_it_serves_pages_until_it_is_stopped_with_streams_open() -> None:
    with serving(ScriptedServer()) as server:
        server.script = job_script()[-1:]
        given = ("dashboard", "--server", server.address, "--listen", "127.0.0.1:0", "--json")
        with stopped_at_end(start_fractune(*given)) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert (ready["event"], ready["server"]) == ("ready", server.address)
            where = ready["address"].split("/")[2]
            assert b"j1" in read(where)
            assert [each["name"] for each in json.loads(read(where, Accept="application/json"))["jobs"]] == ["jobs/j1"]
            stream = http.client.HTTPConnection(where)
            stream.request("GET", "/events")
            assert stream.getresponse().readline() == b"event: change\n"
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
            assert time.monotonic() - began < 5
            stream.close()


def test_pages_may_start_before_their_server(tmp_path: Path) -> None:
    """One line says that it is away."""
    address = f"unix:{tmp_path}/s"
    given = ("dashboard", "--server", address, "--listen", "127.0.0.1:0", "--insecure", "--json")
    with stopped_at_end(start_fractune(*given)) as process:
        where = str(await_event(process, event="ready")["address"]).split("/")[2]
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith(f"fractune: no fractune server answers at {address}")
        assert said.endswith("; the pages go on trying\n")
        assert b"jobs/j1" not in read(where, Accept="application/json")
        with serving(ScriptedServer(), address) as server:
            server.script = job_script()[-1:]
            wait_until(lambda: b"jobs/j1" in read(where, Accept="application/json"))


def status_of(where: str, **headers: str) -> int:
    with contextlib.closing(http.client.HTTPConnection(where, timeout=30)) as connection:
        connection.request("GET", "/", headers=headers)
        return connection.getresponse().status


def test_the_pages_of_a_guarded_server_have_a_password_on_loopback_too(tmp_path: Path) -> None:
    with serving(ScriptedServer(), f"unix:{tmp_path}/s") as server:
        given = ("dashboard", "--server", server.address, "--listen", "127.0.0.1:0", "--json")
        with stopped_at_end(start_fractune(*given)) as process:
            ready = await_event(process, event="ready")
            where = str(ready["address"]).split("/")[2]
            assert status_of(where) == 401
            assert status_of(where, Authorization=f"Bearer {ready['token']}") == 200
        with stopped_at_end(start_fractune(*given, "--insecure")) as process:
            ready = await_event(process, event="ready")
            assert ready["token"] is None
            assert status_of(str(ready["address"]).split("/")[2]) == 200


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_quick_and_silent_with_a_tab_open_and_a_server_that_hangs(stop: signal.Signals) -> None:
    was_asked, may_answer = threading.Event(), threading.Event()

    def hang() -> None:
        was_asked.set()
        may_answer.wait()

    with serving(ScriptedServer()) as server:
        server.before_list = hang
        given = ("dashboard", "--server", server.address, "--listen", "127.0.0.1:0", "--json")
        with stopped_at_end(start_fractune(*given)) as process:
            where = str(await_event(process, event="ready")["address"]).split("/")[2]
            tabs = [http.client.HTTPConnection(where) for _ in range(2)]
            for tab, path in zip(tabs, ("/events", "/"), strict=True):
                tab.request("GET", path)
            assert tabs[0].getresponse().readline() == b"event: change\n"
            assert was_asked.wait(30)
            began = time.monotonic()
            process.send_signal(stop)
            _, said = process.communicate(timeout=60)
            assert time.monotonic() - began < 5
            assert "Traceback" not in said
            for tab in tabs:
                tab.close()
        may_answer.set()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--listen", "0.0.0.0:0"), "can be reached from other machines"),
        (("--listen", "nowhere"), "write HOST:PORT"),
        (("--tls-cert", "cert.pem"), "go together"),
        (("--page-token-file", "missing"), "cannot be read"),
    ],
)
def test_a_wrong_option_is_one_line(options: tuple[str, ...], says: str) -> None:
    refused = run_fractune("dashboard", "--server", "127.0.0.1:1", *options)
    assert refused.returncode == 2
    assert says in error_line(refused)


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
