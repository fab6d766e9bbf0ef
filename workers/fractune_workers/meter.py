"""The cost of a piece of work: seconds, and CPU seconds of this process and its children."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_AFTER_NAME = 11
"""fields of /proc/PID/stat that lie between the name and user time"""


class Spent(NamedTuple):
    worked_s: float
    """without waits for locks"""
    cpu_s: float


class Meter:
    """Starts when it is made. `waited_s` returns how long this process has waited for locks so far."""

    def __init__(self, waited_s: Callable[[], float]) -> None:
        self._waited_s = waited_s
        self._began = self._now()

    def read(self) -> Spent:
        now = self._now()
        return Spent(*(max(0.0, after - before) for before, after in zip(self._began, now, strict=True)))

    def _now(self) -> Spent:
        return Spent(time.perf_counter() - self._waited_s(), cpu_s())


def cpu_s() -> float:
    """CPU seconds of this process so far, with its children, living and dead, and the dead children of these."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(map(_used_s, _children()))


def _children() -> Iterator[int]:
    """Process ids of the children of all threads; none where the kernel does not list them."""
    for place in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            yield from map(int, place.read_text().split())


def _used_s(pid: int) -> float:
    """CPU seconds of a process and of its children that ended; 0 when it has just ended."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[_AFTER_NAME : _AFTER_NAME + 4])) / _TICKS_PER_S
    return 0.0
