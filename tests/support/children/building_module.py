"""The builder's child with a compiler of its own, which does what the trace says."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fractune_core.operators import DIRECT
from fractune_workers.children.building import child as building
from tests.support.samples import WORKLOAD

# By its limit of 1 s, as the kernel's ticks count, which may run ahead.
_ENDED_EARLY = """
import os, signal, time
while time.process_time() < 0.7:
    pass
os.kill(os.getpid(), signal.SIGXCPU)
"""
_PROGRAMS = {"program": "while True: pass", "program ended early": _ENDED_EARLY}
_MEMORY_BYTES = 1 << 30
KERNEL = "0" * 32
"""what names any kernel"""


def _take_memory(trace: str) -> None:
    """More than there is, or much and then the end that it is for C++."""
    taken = b"x" * (_MEMORY_BYTES if trace == "all memory" else _MEMORY_BYTES * 11 // 20)
    if taken:
        os.kill(os.getpid(), signal.SIGABRT)


def _wait_for(file: Path) -> None:
    """Say in a file beside it that this fork waits; go on when it is there."""
    if not file.exists():
        Path(f"{file}.{os.getpid()}").touch()
        signal.pause()


def _obey(trace: str, _target: Any) -> bytes:
    if trace == "spin":
        while True:
            pass
    if trace in _PROGRAMS:
        subprocess.run([sys.executable, "-c", _PROGRAMS[trace]], check=True)
    if trace.startswith("write and wait for "):
        (Path(tempfile.mkdtemp()) / "candidate.o").write_text("half")
        _wait_for(Path(trace.removeprefix("write and wait for ")))
    if trace.startswith("wait for "):
        _wait_for(Path(trace.removeprefix("wait for ")))
    if trace == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if "memory" in trace:
        _take_memory(trace)
    if trace == "leave":
        raise SystemExit(3)
    if trace == "fail":
        raise ValueError("no such loop\nand more")
    return f"{trace} by {os.getpid()}".encode()


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    vars(building).update(read_trace=lambda text, _workload: SimpleNamespace(mod=text), ready=lambda mod, _target: mod)
    vars(building).update(object_of=_obey, kernel_digest=lambda _mod: KERNEL)
    vars(building).update(recurrence_in=lambda _mod: None)
    child: Any = building.BuilderChild()
    child._workloads[WORKLOAD] = {DIRECT: SimpleNamespace(mod=None)}
    return {"build": child.build, "pid": os.getpid, "learn_workload": lambda **_workload: []}
