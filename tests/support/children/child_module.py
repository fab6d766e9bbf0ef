"""What a test's child process can do: answer, fail, hang, crash."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fractune_core.errors import ShareNotReady, ShareUnavailable
from fractune_workers.child.errors import ChildDied


def echo(value: Any) -> Any:
    return value


def fail() -> None:
    raise ValueError("the first line\nthe second line")


def refuse() -> None:
    raise ShareUnavailable("not here")


def lose() -> None:
    raise ChildDied("the device is lost")


def spawn() -> int:
    """Start a process that never ends; its id."""
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid


def fork() -> int:
    """A fork that has not yet asked to die with this process; its id."""
    pid = os.fork()
    if not pid:
        signal.pause()
    return pid


def hang(note: str) -> None:
    """Start such a process, note its id, and never answer."""
    Path(note).write_text(str(spawn()))
    signal.pause()


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def tick(note: str, ticks: int) -> int:
    """Count in the file `note`, a hundred times a second."""
    for number in range(ticks):
        Path(note).write_text(str(number))
        time.sleep(0.01)
    return ticks


def start_another(fifo: str) -> int:
    """Start a process that cannot begin before somebody writes to `fifo`; this one sleeps in the kernel until then."""
    until_written = (os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)
    other = os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[until_written])
    return os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])


def leave() -> None:
    os._exit(3)


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The argument is a file: the first to open it finds its share not ready."""
    if args and not Path(args[0]).exists():
        Path(args[0]).touch()
        raise ShareNotReady("in a moment")
    return {
        "echo": echo,
        "fail": fail,
        "refuse": refuse,
        "lose": lose,
        "spawn": spawn,
        "fork": fork,
        "hang": hang,
        "crash": crash,
        "leave": leave,
        "tick": tick,
        "start_another": start_another,
        "pid": os.getpid,
        "environment": lambda: dict(os.environ),
    }
