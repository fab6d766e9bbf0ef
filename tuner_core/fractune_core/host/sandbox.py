"""A sandbox for a process that reads strangers' files or runs their code: no new privileges, only the files that it
needs, no network, no other process's memory, and limits.

`Sandbox.enter` skips protections that the kernel does not grant, tests each protection, and names those that are
missing. `python -m fractune_core.host.sandbox FILE` prints the missing protections on this host as JSON, for a sandbox
that is to hide the file.

Landlock (Linux 5.13 or later) limits the files that a process may open. The process also loses access to the memory of
every process that it has not started. Its children inherit the limits, root's too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fractune_core.host import syscall_filter as calls
from fractune_core.host.limits import limit_process
from fractune_core.host.machine import usable_memory_bytes

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_GET_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TO_READ = _EXECUTE | _READ_FILE | _READ_DIR
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM, _REFER = (1 << bit for bit in (6, 9, 10, 11, 12, 13))
_NEVER = _MAKE_CHAR | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK | _MAKE_SYM | _REFER
"""links, pipes and the like: other processes could wait on them or follow them. `_REFER` moves or links a file into
another folder"""
_SCOPES = 0b11
"""abstract Unix sockets and signals: only among its own children"""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def restrict_files(readable: Iterable[str], writable: Iterable[str], *, programs: bool = True) -> None:
    """Limit this thread and its children to opening files and folders of `readable`, and of `writable` also for
    writing; missing paths are left out. In writable folders they make files and folders, but no links. Without
    `programs` they run none of these files. The process must have given up new privileges.

    Raises OSError when the kernel has no Landlock, or does not let it be used.
    """
    version = _call(_CREATE_RULESET, None, 0, _GET_VERSION)
    handled = _known_rights(version)
    ruleset = _Ruleset(handled, 0, _SCOPES if version >= 6 else 0)
    size = ctypes.sizeof(ruleset) if version >= 6 else 8
    rules = _call(_CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    refused = _NEVER if programs else _NEVER | _EXECUTE
    try:
        for path in readable:
            _allow(rules, path, handled & _TO_READ & ~refused)
        for path in writable:
            _allow(rules, path, handled & ~refused)
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _known_rights(version: int) -> int:
    """All rights that this version of Landlock can refuse."""
    rights = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        if version >= since:
            rights |= 1 << bit
    return rights


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if os.path.isdir(path) else rights & _OF_A_FILE  # noqa: PTH112  no pathlib for a start this early
        _call(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(_PathBeneath(allowed, folder)), 0)
    finally:
        os.close(folder)


def _call(number: int, *args: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = libc.syscall(ctypes.c_long(number), *args)
    if found < 0:
        raise OSError(ctypes.get_errno(), "Landlock is not to be had here")
    return found


_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAPABILITIES_3 = 0x20080522
_READ_ANY_FILE = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: root reads models that belong to others, where the sandbox lets it"""
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/proc", "/sys", "/dev/urandom", "/dev/random", "/dev/zero")
_SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group")
_CORE = str(Path(__file__).parents[2])
_NOWHERE = "/dev/null"

_KEPT = frozenset(("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV"))
_SECRETS = frozenset(("FRACTUNE_SECRET", "FRACTUNE_REDIS", "FRACTUNE_DATABASE"))
_KEPT_PREFIXES = ("LC_", "PYTHON", "TVM_", "OMP_", "OPENBLAS_", "MALLOC_", "CUDA_", "NVIDIA_")


@dataclass(frozen=True)
class Sandbox:
    """The permissions that one process keeps."""

    memory_bytes: int | None
    """bytes of addresses, and of one file; None = no limit"""
    reserved_bytes: int = 0
    """of addresses beside these that it does not fill. Threads reserve far more than they use"""
    file_bytes: int | None = None
    """of one file, where that is not `memory_bytes`"""
    limits_cpu: bool = True
    """whether a call has a limit on CPU time, and not only its deadline. Else it may set one for itself"""
    processes: bool = True
    """whether it may start other processes"""
    programs: bool = True
    """whether it, or what it starts, may run other programs"""
    uses_cuda: bool = False
    """It keeps what CUDA's driver is known to need, and all files: no such process was tried with Landlock."""
    readable: tuple[str, ...] = ()
    """files and folders, in addition to Python, our packages and the system's libraries"""
    writable: tuple[str, ...] = ()
    """folders; one of them must be the folder for temporary files"""
    hidden: tuple[str, ...] = ()
    """files that must be unreadable; this is tested"""
    early_methods: tuple[str, ...] = ()
    """of a child: called before it has read or run anything of a stranger, so its supervisor trusts their errors"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Sandbox:
        paths = {name: tuple(said[name]) for name in ("readable", "writable", "hidden", "early_methods")}
        return cls(**{**said, **paths})

    def enter(self) -> list[str]:
        """Enter the sandbox, before this process has a second thread. Returns a line for each missing protection."""
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _keep_capabilities(_READ_ANY_FILE)
        limit_process(self.memory_bytes, self.reserved_bytes, self.file_bytes)
        if not self.uses_cuda:
            with contextlib.suppress(OSError):
                restrict_files(_needed(self.readable), (_NOWHERE, *self.writable), programs=self.programs)
        refused = [
            name for name, may in ((calls.PROCESSES, self.processes), (calls.PROGRAMS, self.programs)) if not may
        ]
        spared = [
            *(calls.NEEDED_BY_CUDA if self.uses_cuda else ()),
            *(() if self.limits_cpu else (calls.OWN_CPU_LIMIT,)),
        ]
        with contextlib.suppress(OSError):
            calls.refuse_system_calls(refused, spared)
        return list(self._lacking())

    def _lacking(self) -> Iterator[str]:
        if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208  no pathlib for a start this early
            yield f"{threads - 1} of its threads lie outside of it (it was entered too late)"
        for path in self.hidden:
            if _opens(path):
                yield f"it can read {path} ({self._hint(path)})"
        if _opens(f"/proc/{os.getppid()}/environ"):
            yield f"it can read the memory of the process that started it ({self._no_landlock})"
        if _signals(os.getppid()):
            yield "it can end other processes of its user (Landlock refuses signals from Linux 6.12 on)"
        if _makes_sockets():
            yield "it can open network connections (this kernel takes no filter of system calls, seccomp)"
        if os.getuid() == 0 and self.processes:
            yield "the number of its processes is not limited (it runs as root; start workers as another user)"

    @property
    def _no_landlock(self) -> str:
        return "CUDA was not tried with Landlock" if self.uses_cuda else "this kernel grants no Landlock"

    def _hint(self, path: str) -> str:
        within = next((folder for folder in _needed(self.readable) if Path(path).is_relative_to(folder)), None)
        if within is None or self.uses_cuda:
            return self._no_landlock
        return f"it lies in {within}, which it must read; move it"


def plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of `environ` for a process in a sandbox: variables that Python, its libraries and the CUDA toolkit need.
    This is a list of allowed names, because passwords have too many names.
    """
    return {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process outside a sandbox, without the fleet's secrets."""
    return {name: value for name, value in environ.items() if name not in _SECRETS}


def hide_memory() -> None:
    """Keep this user's other processes from reading this process's memory and environment, and from debugging it. It
    leaves no core dump. Root still can.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _keep_capabilities(kept: int) -> None:
    """Drop root's other capabilities, for children too."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    only = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    if os.getuid() == 0:
        ctypes.CDLL(None).capset(header, only)


def _needed(more: tuple[str, ...]) -> Iterator[str]:
    yield from (*_SYSTEM, *_SETTINGS, _CORE, *more)
    yield from dict.fromkeys((sys.prefix, sys.base_prefix, *filter(None, sys.path)))
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
        yield from filter(None, os.environ.get(name, "").split(os.pathsep))


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _makes_sockets() -> bool:
    try:
        socket.socket().close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write(json.dumps(Sandbox(usable_memory_bytes(), hidden=(sys.argv[1],)).enter()))
