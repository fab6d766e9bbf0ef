"""System calls that a process gives up, by seccomp: each is refused with EPERM from then on, to what it starts too.

A list of what is refused, not of what is allowed: it takes away ways out of a process (sockets, other processes'
memory, another process group), and a new version of a library must not meet it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
"""where the kernel's `struct seccomp_data` has them"""
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_X32 = 0x40000000
"""calls of another table by the same architecture begin here"""

# x86-64, aarch64
_REFUSED = {
    "socket": (41, 198),  # a pair that is connected already (socketpair) reaches nobody
    "io_uring_setup": (425, 425),  # opens sockets without a system call
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "open_by_handle_at": (304, 265),
    "setsid": (112, 157),  # its supervisor kills the process group
    "setpgid": (109, 154),
    "setns": (308, 268),
    "mount": (165, 40),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
}
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_system_calls() -> None:
    """From now on for this thread and what it starts. The process must have given up new privileges.

    Raises OSError when the kernel takes no filter, or the architecture's numbers are not known here.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"the system calls of {machine} are not known here")
    instructions = _instructions(*_ARCHITECTURES[machine])
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def _instructions(architecture: int, column: int) -> bytes:
    """A program of BPF: each step is a code, how far to jump if so and if not, and a value."""
    numbers = [numbers[column] for numbers in _REFUSED.values()]
    to_refuse = len(numbers) + 1
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 0, to_refuse + 2, architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, to_refuse, 0, _X32),
        *((_IF_EQUAL, to_refuse - 1 - at, 0, number) for at, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
