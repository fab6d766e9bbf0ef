"""The command `fractune` as real processes, and what they start."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import onnx

from tests.support.paths import REPOSITORY
from tests.support.processes.ready_made import ReadyMade

_COMMAND = [sys.executable, "-m", "fractune"]
_PATH = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))


_Process = TypeVar("_Process", bound="Started | subprocess.Popen[str]")


def write_model(path: Path, channels: int = 8, seed: int = 0) -> Path:
    """A small network with two convolutions and a matrix product, on an input `x` of 1 x 4 x 16 x 16; its weights
    follow from `seed`.
    """
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(rng.uniform(-0.5, 0.5, shape).astype("float32"), name)

    nodes = [
        onnx.helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["c1"], ["r1"]),
        onnx.helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        onnx.helper.make_node("Flatten", ["c2"], ["f"]),
        onnx.helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 16, 16])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 10])],
        [weight("w1", channels, 4, 3, 3), weight("w2", channels, channels, 3, 3), weight("w3", channels * 64, 10)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def _environ(more: dict[str, str] | None) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": _PATH} | (more or {})


def run_fractune(
    *args: str, timeout_s: float = 240.0, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; in a new interpreter if `env` has PYTHONPATH, which only a new one reads."""
    whole = _environ(env)
    if env and "PYTHONPATH" in env:
        command = [*_COMMAND, *args]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=whole, cwd=cwd
        )
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = ReadyMade("fractune.__main__", *args, stdout=stdout, stderr=stderr, env=whole, cwd=cwd)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        for output in (stdout, stderr):
            output.seek(0)
        return subprocess.CompletedProcess([*_COMMAND, *args], code, stdout.read(), stderr.read())


class Started(ReadyMade):
    """A command whose output is read while it runs."""

    def __init__(self, module: str, *args: str, env: dict[str, str] | None = None) -> None:
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = open(out), open(err)  # noqa: SIM115, PTH123  closed by `communicate`
        with open(its_out, "w") as stdout, open(its_err, "w") as stderr:  # noqa: PTH123
            super().__init__(module, *args, stdout=stdout, stderr=stderr, env=_environ(env))

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What is left of its output and errors, when it has ended. Raises subprocess.TimeoutExpired."""
        found = ["", ""]

        def read(place: int, output: IO[str]) -> None:
            if not output.closed:
                with output:
                    found[place] = output.read()

        readers = [
            threading.Thread(target=read, args=each, daemon=True) for each in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired("what it has started", timeout or 0)
        return found[0], found[1]


def start_fractune(*args: str, env: dict[str, str] | None = None) -> Started:
    return Started("fractune.__main__", *args, env=env)


def start(*args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a new Python with these arguments, as `start_fractune` starts a command."""
    return subprocess.Popen(
        [sys.executable, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environ(env)
    )


def events(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The JSON lines of a command that must have worked."""
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def error_line(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error of a command that must have failed."""
    return only_line(ended.stderr)


def only_line(said: str) -> str:
    """What a command that must have failed said on standard error."""
    lines = said.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("fractune: ")
    return lines[0]


def await_event(process: Started, **wanted: Any) -> dict[str, Any]:
    """Read JSON lines until one has these fields."""
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if wanted.items() <= event.items():
            return event
    raise AssertionError(f"no {wanted} before the end: {process.stderr.read()}")


def descendants(pid: int) -> set[int]:
    """Process ids of everything that the process started, at any depth."""
    parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown}
        found |= grown
    return found


def parent_of(pid: int) -> int:
    """Its parent's process id; 0 for a process that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[1])


def command_of(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def users_of(folder: Path) -> list[str]:
    """Commands of the live processes that name the folder."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    commands = [command_of(pid) for pid in pids if pid != os.getpid() and parent_of(pid)]
    return [command for command in commands if str(folder) in command]


@contextlib.contextmanager
def stopped_at_end(process: _Process) -> Iterator[_Process]:
    """Ends the process with the block, by SIGTERM so that it can end what it started."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
