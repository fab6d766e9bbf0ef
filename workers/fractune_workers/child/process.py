"""The operating system's side of a child: the cores that it starts on, a stop in mid-work, its memory at the end."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_END_TIMEOUT_S = 2.0
_LOOK_EVERY_S = 0.01
_STANDSTILL_TIMEOUT_S = 0.2
_LOOK_FOR_STANDSTILL_EVERY_S = 0.0005


@dataclass(frozen=True)
class Start:
    """How a process starts."""

    cores: Sequence[int] = ()
    """where it may run; none = wherever its supervisor may"""
    launcher: Sequence[str] = ()
    """a command that enters something and then becomes the process, such as `systemd-run --scope`"""


@contextlib.contextmanager
def staying_on(cores: Sequence[int]) -> Iterator[None]:
    """Processes that this thread starts within the block run on `cores` only, from the start; empty = anywhere."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def await_standstill(pid: int) -> None:
    """Wait until a process that was sent SIGSTOP has stopped or ended: its last cycles must not disturb a measurement
    on its cores.

    The wait ends after `_STANDSTILL_TIMEOUT_S`. A process that is starting another one (vfork) sleeps in the kernel
    until the new one has begun, and the new one is stopped too. It computes nothing meanwhile, and stops as it wakes.
    """
    deadline = time.monotonic() + _STANDSTILL_TIMEOUT_S
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= deadline:
            return
        time.sleep(_LOOK_FOR_STANDSTILL_EVERY_S)


def peak_bytes_at_end(process: subprocess.Popen[bytes]) -> int:
    """Peak memory of a process that is ending, or of one that it started; 0 where it is not known."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    while process.returncode is None and time.monotonic() < deadline:
        try:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # somebody has waited for it already
            return 0
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_maxrss * 1024
        time.sleep(_LOOK_EVERY_S)
    return 0
