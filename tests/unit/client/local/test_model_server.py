"""A model server as a process: what it needs, how it starts, answers and fails. The process is real and simulated."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest

from fractune.comparing import beside
from fractune.errors import BadRequest, FractuneError
from fractune.local import timing_process
from fractune.local.model_server import ModelServer, check_server, clients, serving
from fractune.local.timing_process import calls_of, noting_a_wait, open_child
from fractune_core.files.compared import ONNX_RUNTIME, Compared
from fractune_workers.locks import core_locks
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.encoders import WORDS
from tests.support.processes.forked import succeeds_in_child
from tests.support.processes.redis_process import wait_until
from tests.support.real_bundle import ENCODER

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


def test_the_holder_of_the_cores_is_named_while_this_process_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timing_process, "_WAIT_NOTED_S", 0.1)
    monkeypatch.setattr(core_locks, "_WAIT_NOTED_S", 0.01)
    lines: list[str] = []
    waiting, holding = CoreLocks(tmp_path, 8), CoreLocks(tmp_path, 8)

    def measure() -> None:
        with noting_a_wait(waiting, lines.append), waiting.measuring([0]):
            pass

    thread = threading.Thread(target=measure)
    with holding.measuring([0]):
        thread.start()
        wait_until(lambda: lines != [])
    thread.join(30)
    assert lines == [f"waiting for the measurement cores, held by PID {os.getpid()} of another stack"]


def test_contenders_get_ids_of_the_tables_and_masks_of_ones(encoders: Path) -> None:
    asked: dict[str, Any] = {}

    def compare(_model: Any, requests: list[dict[str, Any]], *_: Any) -> tuple[Compared, dict[str, Any]]:
        asked.update(requests[0])
        return Compared({}), {}

    def ask() -> bool:  # in a process of its own, because it is confined
        beside.time_beside_runtimes = compare  # type: ignore[assignment]
        methods = open_child(["cpu:1", str(min(os.sched_getaffinity(0)))])
        bundle, onnx = str(encoders / f"{ENCODER}-1x16.fractune"), str(encoders / f"{ENCODER}.onnx")
        methods["compare"](bundle=bundle, member=None, onnx=onnx, runtimes=[], repeats=6, exact=True)
        return bool(1 < asked["ids"].max() < WORDS and (asked["mask"] == 1).all())

    assert succeeds_in_child(ask)


def test_an_input_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    ((threads, call),) = calls_of(ONNX_RUNTIME, str(tmp_path / "m.onnx"), [1], {"x": [2]})[1]
    assert threads == 1
    assert call()[0].shape == (2,)
    with pytest.raises(BadRequest, match=r"^--input 'z': no such input; the inputs are x$"):
        calls_of(ONNX_RUNTIME, str(tmp_path / "m.onnx"), [1], {"x": [2], "z": [2]})
