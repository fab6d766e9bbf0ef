"""Which files a process may open, by Landlock (Linux 5.13 or later): all others are refused to it from then on, and so
is the memory of every process that it has not started. What it starts inherits this, root too.
"""

from __future__ import annotations

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
"""links, pipes and the like, on which others would wait or which they would follow; `_REFER` is to move a file, or link
it, into another folder"""
_SCOPES = 0b11
"""abstract Unix sockets, and signals: only among the processes that it has started"""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> None:
    """From now on this thread, and what it starts, opens nothing but files and folders of `readable`, and of `writable`
    also for writing; one that is not there is left out. In those it makes files and folders, and no links. The process
    must have given up new privileges.

    Raises OSError when the kernel has no Landlock, or does not let it be used.
    """
    version = _call(_CREATE_RULESET, None, 0, _GET_VERSION)
    handled = _known_rights(version)
    ruleset = _Ruleset(handled, 0, _SCOPES if version >= 6 else 0)
    size = ctypes.sizeof(ruleset) if version >= 6 else 8
    rules = _call(_CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    try:
        for path in readable:
            _allow(rules, path, handled & _TO_READ)
        for path in writable:
            _allow(rules, path, handled & ~_NEVER)
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _known_rights(version: int) -> int:
    """All that this version of Landlock can refuse."""
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
