"""Landlock (Linux 5.13 or later): limits the files that a process may open. The process also loses access to the memory
of every process that it has not started. Its children inherit the limits, root's too.
"""

import ctypes
import os
from collections.abc import Iterable

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
