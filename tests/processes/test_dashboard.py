"""`fractune dashboard` as a process: it says where it is, answers, refuses what it must, and ends at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
from pathlib import Path

import pytest

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
