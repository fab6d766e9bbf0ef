"""A model server as a process: what it needs, how it starts, answers and fails. The process is real and simulated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fractune.errors import BadRequest, FractuneError
from fractune.local.model_server import ModelServer, check_server, clients, serving
from tests.support.processes.redis_process import wait_until

SIMULATED = """
import http.server, os, signal, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, b"{}")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200 if body == b"right" else 400, b"first\\nwrong request")
    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_): ...
subprocess.Popen(["sleep", "600"])
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@contextmanager
def simulated(folder: Path, program: str) -> Iterator[ModelServer]:
    """The program runs in the place of a server's module."""
    (folder / "program.py").write_text(program)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {folder}/program.py\n")
    python.chmod(0o755)
    with serving("fastapi", python, folder / "m.fractune", folder / "log") as server:
        yield server


@pytest.mark.parametrize(
    ("name", "python", "complaint"),
    [
        ("tritn", sys.executable, "--server 'tritn': write fastapi, kserve, litserve, ray"),
        ("kserve", "/none/python", "'/none/python': no such program; give the path of a Python"),
        ("kserve", "false", "'false' is not a Python"),
    ],
)
def test_a_wrong_server_is_one_line(name: str, python: str, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        check_server(name, python)


def test_missing_packages_are_named(tmp_path: Path) -> None:
    """Its Python sees the standard library alone."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(FractuneError, match=r"lacks fractune-runtime, fastapi, uvicorn, prometheus_client; install"):
        check_server("fastapi", python)


def test_requests_are_answered_and_all_processes_end(tmp_path: Path) -> None:
    with simulated(tmp_path, SIMULATED) as server, clients() as asking:
        server.wait()
        assert len(server.latencies_s(asking, b"right", [0.0, 0.01, 0.02])) == 3
        with pytest.raises(FractuneError, match="fastapi answered 400: wrong request"):
            server.ask(b"wrong")
        with pytest.raises(FractuneError, match="fastapi answered 400: wrong request"):
            server.latencies_s(asking, b"wrong", [0.0, 3600.0])
        started = server.processes()
        assert len(started) == 2
        assert server.cpu_s() > 0
    wait_until(lambda: not any(map(lives, started)))  # the kernel ends a killed process a little later


def lives(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_server_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    with simulated(tmp_path, "print('first')\nraise SystemExit('no such bundle')") as server:
        with pytest.raises(FractuneError, match="fastapi did not start: no such bundle"):
            server.wait()
        with pytest.raises(FractuneError, match=r"fastapi gave no answer .ConnectionRefusedError.: no such bundle"):
            server.ask(b"")
