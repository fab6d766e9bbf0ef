"""Limits of a process that the kernel enforces: how to set them, and whether one has ended a process."""

import os
import resource
import signal
import sys
from pathlib import Path

MORE_TASKS = 4096
"""processes and threads that may be added to the user's present ones: the kernel counts them by user, and other
processes of the user grow too"""
OPEN_FILES = 1024
"""each may be a socket, with memory of the kernel that no other limit counts"""
_MET = 0.5
"""of the memory limit: if this part was in use at a death, memory counts as its cause. The limit is on addresses, and a
process uses only a part of them"""


def limit_process(memory_bytes: int | None, reserved_bytes: int = 0, file_bytes: int | None = None) -> None:
    """Limit this process and its children: memory to `memory_bytes`, and a file to `file_bytes` (None = as memory). The
    number of tasks and of open files is limited too, and a core dump is not written.

    `reserved_bytes`: addresses that the process may have beside its memory. Then private memory has a limit of its own.
    """
    if memory_bytes is not None:
        _lower(resource.RLIMIT_AS, memory_bytes + reserved_bytes)
        if reserved_bytes:
            _lower(resource.RLIMIT_DATA, memory_bytes)
    if (most_bytes := file_bytes or memory_bytes) is not None:
        _lower(resource.RLIMIT_FSIZE, most_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower(resource.RLIMIT_NPROC, tasks_of(os.getuid()) + MORE_TASKS)


def limit_cpu(pid: int, cpu_s: int) -> int:
    """Have the kernel end the process `pid` after `cpu_s` more seconds of CPU time; each of its children has a count of
    its own. A signal ends it, which it may ignore, so the result is the CPU time (as in `spent_s`) at which the signal
    is due. Raises OSError when it has ended.
    """
    _, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
    end_s = int(spent_s(pid)) + cpu_s + 1
    resource.prlimit(pid, resource.RLIMIT_CPU, (end_s, hard))
    return end_s


def cpu_limit_s() -> int:
    """Seconds of CPU time that a child of this process may take; a very large number without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def limit_memory(pid: int, memory_bytes: int) -> None:
    """Limit the private memory that the process `pid` and its children may write to. Raises ProcessLookupError.

    Addresses, as in `limit_process`, would be the wrong measure. Each thread takes 64 MiB or more of them that it
    hardly uses, and a measuring process has a thread for each core.
    """
    _lower(resource.RLIMIT_DATA, memory_bytes, pid)


def memory_limit() -> int | None:
    """Bytes that this process may address or own; None without a limit."""
    found = [resource.getrlimit(limit)[0] for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((soft for soft in found if soft != resource.RLIM_INFINITY), default=None)


def set_memory_limit(memory_bytes: int) -> None:
    """Lower the limit on addresses of this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))


def addressed_bytes() -> int:
    """Bytes that this process addresses now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def own_peak_bytes() -> int:
    """The peak memory of this process itself: `ru_maxrss` may include that of its parent. 0 where the kernel does not
    report it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def is_death_by_cpu(number: int) -> bool:
    """Whether signal `number` is that of the limit on CPU time."""
    return number == signal.SIGXCPU


def is_death_by_memory(number: int, peak_bytes: int, memory_bytes: int) -> bool:
    """Whether a process with a peak of `peak_bytes` under a limit of `memory_bytes` died for lack of memory.

    `number` is the signal that ended it, 0 for none. A program without memory aborts, crashes or exits; people end
    processes by other signals.
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


def tasks_of(uid: int) -> int:
    """The number of the user's visible processes and threads."""
    return sum(_tasks(folder, uid) for folder in Path("/proc").iterdir() if folder.name.isdigit())


def _tasks(folder: Path, uid: int) -> int:
    """0 for another user's process, and for one that has just ended."""
    try:
        lines = (folder / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    said = dict(line.split(":", 1) for line in lines if line.startswith(("Uid:", "Threads:")))
    return int(said["Threads"]) if said["Uid"].split()[0] == str(uid) else 0
