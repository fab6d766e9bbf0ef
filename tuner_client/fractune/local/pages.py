"""The pages of a stack: a process of `fractune dashboard` beside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fractune.local.stack import own_env
from fractune.local.state import StackFolder
from fractune_core.errors import FractuneError

_END_S = 10.0
"""from a request to end until the process is killed"""


@dataclass(frozen=True)
class Pages:
    """The running process; use `running_pages`."""

    address: str
    """of the first page"""
    token: str
    """the password that a browser asks for; empty for none"""
    process: subprocess.Popen[str]
    log: Path

    def end_reason(self) -> str:
        """Why the process has ended; empty while it runs."""
        return "" if self.process.poll() is None else _reason(self.process, self.log)


@contextlib.contextmanager
def running_pages(state: Path, *listen: str) -> Iterator[Pages]:
    """The pages of the stack that runs in `state`, until the block ends; `listen` are options of the command.

    Raises FractuneError if they cannot be served.
    """
    command = [sys.executable, "-m", "fractune.cli", "dashboard", "--state", str(state), "--json", *listen]
    log = StackFolder(state.expanduser().absolute()).logs / "dashboard.log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            command,
            env={**os.environ, **own_env()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        try:
            yield _ready(process, log)
        finally:
            _end(process)


def _ready(process: subprocess.Popen[str], log: Path) -> Pages:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        process.wait()
        raise FractuneError(f"the dashboard did not start: {_reason(process, log)}")
    ready = json.loads(line)
    return Pages(ready["address"], ready["token"] or "", process, log)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _reason(process: subprocess.Popen[str], log: Path) -> str:
    """The last line that the process wrote."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1].removeprefix("fractune: ") if lines else f"it ended with exit code {process.returncode}"
