"""What a test's child process can do: answer, fail, hang, crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner_core.errors import ShareUnavailable


def echo(value: Any) -> Any:
    return value


def fail() -> None:
    raise ValueError("the first line\nthe second line")


def refuse() -> None:
    raise ShareUnavailable("not here")


def hang(note: str) -> None:
    """Start a process of its own, note its id, and never answer."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    Path(note).write_text(str(grandchild.pid))
    signal.pause()


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    os._exit(3)


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    return {
        "echo": echo,
        "fail": fail,
        "refuse": refuse,
        "hang": hang,
        "crash": crash,
        "leave": leave,
        "pid": os.getpid,
    }
