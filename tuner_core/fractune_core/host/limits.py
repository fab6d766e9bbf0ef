"""Limits that the kernel keeps for a process: how they are set, and whether one of them has ended it."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

MORE_TASKS = 4096
"""processes and threads that may be added to those that the user has: their number is counted by user, and others of
the user's processes grow too"""
_MET = 0.5
"""of the memory limit: with so much in use at a death, memory is taken for its cause. The limit is on addresses, and a
process uses only a part of those that it has"""


def limit_process(memory_bytes: int) -> None:
    """Limit this process, and each that it starts: addresses and the size of a file to `memory_bytes`, the number of
    tasks, and no core dump.
    """
    _lower(resource.RLIMIT_AS, memory_bytes)
    _lower(resource.RLIMIT_FSIZE, memory_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NPROC, _tasks_of(os.getuid()) + MORE_TASKS)


def limit_cpu(pid: int, cpu_s: int) -> int:
    """Have the process `pid` ended when it has taken `cpu_s` more seconds of CPU time than by now; one that it starts,
    when that has taken as much on its own. It is ended by a signal, which it may ignore: the seconds of CPU time of
    `spent_s` at which that is due are returned. Raises OSError when it has ended.
    """
    _, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
    end_s = int(spent_s(pid)) + cpu_s + 1
    resource.prlimit(pid, resource.RLIMIT_CPU, (end_s, hard))
    return end_s


def cpu_limit_s() -> int:
    """Seconds of CPU time that a process which this one starts may take; a very large number without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def limit_memory(pid: int, memory_bytes: int) -> None:
    """Limit the memory of its own that the process `pid` may write to, and each that it starts. Raises
    ProcessLookupError.

    Not addresses, as in `limit_process`: of those each thread takes 64 MiB or more that it hardly uses, and a process
    that measures has a thread for each core.
    """
    _lower(resource.RLIMIT_DATA, memory_bytes, pid)


def memory_limit() -> int | None:
    """Bytes that this process may address, or have as its own; None without a limit."""
    found = [resource.getrlimit(limit)[0] for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((soft for soft in found if soft != resource.RLIM_INFINITY), default=None)


def set_memory_limit(memory_bytes: int) -> None:
    """Lower that of this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))


def addressed_bytes() -> int:
    """Bytes that this process addresses now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def own_peak_bytes() -> int:
    """The most that this process has had in memory, by itself: `ru_maxrss` may be that of the one that started it. 0
    where the kernel does not say.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def is_death_by_cpu(number: int) -> bool:
    """Whether signal `number` is that of the limit on CPU time."""
    return number == signal.SIGXCPU


def is_death_by_memory(number: int, peak_bytes: int, memory_bytes: int) -> bool:
    """Whether a process that had `peak_bytes` of at most `memory_bytes` in memory died for want of more.

    `number` is the signal that ended it, 0 for none. A program that is refused memory aborts, crashes or leaves; the
    signals by which somebody ends a process are others.
    """
    by_itself = number in (0, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
    return by_itself and peak_bytes >= _MET * memory_bytes


def _lower(limit: int, wanted: int, pid: int = 0) -> None:
    """Of the process `pid`; 0 = this one."""
    _, hard = resource.prlimit(pid, limit)
    least = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.prlimit(pid, limit, (least, least))


def spent_s(pid: int) -> float:
    """Seconds of CPU time that the process has taken, with all its threads. Raises OSError when it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _tasks_of(uid: int) -> int:
    """How many processes and threads the user has, as far as they are seen here."""
    return sum(_tasks(folder, uid) for folder in Path("/proc").iterdir() if folder.name.isdigit())


def _tasks(folder: Path, uid: int) -> int:
    """0 for another user's, and for one that has just ended."""
    try:
        lines = (folder / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    said = dict(line.split(":", 1) for line in lines if line.startswith(("Uid:", "Threads:")))
    return int(said["Threads"]) if said["Uid"].split()[0] == str(uid) else 0
