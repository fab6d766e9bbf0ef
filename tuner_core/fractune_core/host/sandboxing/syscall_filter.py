"""A filter of system calls (seccomp): the kernel refuses each listed call with EPERM, to children too.

It lists refused calls, not allowed ones. It closes ways out of a process (sockets, other processes, other files' owners
and modes, namespaces), and new versions of libraries must not trip over it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Iterator

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
"""where the kernel's `struct seccomp_data` has them"""
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_REFUSE = _ERROR | errno.EPERM
_X32 = 0x40000000
"""calls of another table of the same architecture begin here"""
_NEW_NAMESPACES = 0x7E020000
"""flags of `clone`"""
_OWN, _ONE_PROCESS = 0, 0
_ONE_PROCESS_IO = 1

_Numbers = tuple[int | None, int | None]
"""x86-64, aarch64; None where the architecture lacks the call"""

# Each with why a process that reads models must not have it.
_REFUSED: dict[str, dict[str, _Numbers]] = {
    "it would reach others": {
        "socket": (41, 198),
        "io_uring_setup": (425, 425),  # opens sockets without a system call
        "shmget": (29, 194),
        "shmat": (30, 196),
        "shmctl": (31, 195),
        "semget": (64, 190),
        "semop": (65, 193),
        "semctl": (66, 191),
        "semtimedop": (220, 192),
        "msgget": (68, 186),
        "msgsnd": (69, 189),
        "msgrcv": (70, 188),
        "msgctl": (71, 187),
        "mq_open": (240, 180),
        "mq_unlink": (241, 181),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
    },
    "it would open files by number and not by path": {
        "open_by_handle_at": (304, 265),
    },
    "it would look into other processes, or change them": {
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "process_madvise": (440, 440),
        "pidfd_getfd": (438, 438),
        "kcmp": (312, 272),
        "migrate_pages": (256, 238),
        "move_pages": (279, 239),
        "perf_event_open": (298, 241),
        "bpf": (321, 280),
        "userfaultfd": (323, 282),
    },
    "its supervisor kills the process group": {
        "setsid": (112, 157),
        "setpgid": (109, 154),
    },
    "Landlock lets it change owners, modes and times of files that it cannot open": {
        "chmod": (90, None),
        "fchmod": (91, 52),
        "fchmodat": (268, 53),
        "fchmodat2": (452, 452),
        "chown": (92, None),
        "lchown": (94, None),
        "fchown": (93, 55),
        "fchownat": (260, 54),
        "utime": (132, None),
        "utimes": (235, None),
        "futimesat": (261, None),
        "utimensat": (280, 88),
        "setxattr": (188, 5),
        "lsetxattr": (189, 6),
        "fsetxattr": (190, 7),
        "removexattr": (197, 14),
        "lremovexattr": (198, 15),
        "fremovexattr": (199, 16),
        "setxattrat": (463, 463),
        "removexattrat": (466, 466),
    },
    "it would empty the log that it inherits": {
        "truncate": (76, 45),
        "ftruncate": (77, 46),
        "fallocate": (285, 47),
    },
    "its limits stay": {
        "setrlimit": (160, 164),
    },
    "it would get another view of the system, or more of the kernel to attack": {
        "unshare": (272, 97),
        "setns": (308, 268),
        "chroot": (161, 51),
        "pivot_root": (155, 41),
        "mount": (165, 40),
        "umount2": (166, 39),
        "open_tree": (428, 428),
        "move_mount": (429, 429),
        "fsopen": (430, 430),
        "fsmount": (432, 432),
        "fspick": (433, 433),
        "mount_setattr": (442, 442),
        "personality": (135, 92),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "acct": (163, 89),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "init_module": (175, 105),
        "finit_module": (313, 273),
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "reboot": (169, 142),
    },
}
_NOT_THERE: dict[str, _Numbers] = {"clone3": (435, 435)}
"""refused as by an older kernel: a filter cannot see its flags, and glibc calls `clone` instead"""

_Condition = tuple[int, int, int, bool]
"""of an argument: where it lies, by which comparison with which value, and whether that must hold"""


def _low(argument: int) -> int:
    return _ARGUMENTS_AT + 8 * argument


def _high(argument: int) -> int:
    return _low(argument) + 4


def _is_not(at: int, value: int) -> _Condition:
    return (at, _IF_EQUAL, value, False)


_OTHER_PROCESS = ((_is_not(_low(0), _OWN),),)
_REFUSED_WHEN: dict[str, tuple[_Numbers, tuple[tuple[_Condition, ...], ...]]] = {
    # A call is refused if all conditions of any one group hold.
    # A socket pair of streams is connected already and reaches no other process. A pair of datagrams can send to others
    # by their path: these are the bits of SOCK_DGRAM, SOCK_RAW, SOCK_RDM and SOCK_SEQPACKET.
    "socketpair": ((53, 199), (((_low(1), _IF_ANY_BIT, 0b1110, True),),)),
    "clone": ((56, 220), (((_low(0), _IF_ANY_BIT, _NEW_NAMESPACES, True),),)),
    "prlimit64": (
        (302, 261),
        (
            *_OTHER_PROCESS,
            # To set any but that on addresses, which forks lower for themselves.
            (_is_not(_low(1), resource.RLIMIT_AS), _is_not(_low(2), 0)),
            (_is_not(_low(1), resource.RLIMIT_AS), _is_not(_high(2), 0)),
        ),
    ),
    "sched_setaffinity": ((203, 122), _OTHER_PROCESS),
    "sched_setparam": ((142, 118), _OTHER_PROCESS),
    "sched_setscheduler": ((144, 119), _OTHER_PROCESS),
    "sched_setattr": ((314, 274), _OTHER_PROCESS),
    "setpriority": ((141, 140), ((_is_not(_low(0), _ONE_PROCESS),), (_is_not(_low(1), _OWN),))),
    "ioprio_set": ((251, 30), ((_is_not(_low(0), _ONE_PROCESS_IO),), (_is_not(_low(1), _OWN),))),
}
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_Step = tuple[int, int, int, int]
"""of a program of BPF: a code, how far to jump if so and if not, and a value"""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_system_calls() -> None:
    """Install the filter for this thread and its children. The process must have given up new privileges.

    Raises OSError when the kernel takes no filter, or the numbers of the architecture are not known here.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"the system calls of {machine} are not known here")
    instructions = b"".join(struct.pack("HBBI", *step) for step in _steps(*_ARCHITECTURES[machine]))
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def _steps(architecture: int, column: int) -> Iterator[_Step]:
    yield (_LOAD, 0, 0, _ARCHITECTURE_AT)
    yield from _unless(_IF_EQUAL, architecture, _REFUSE)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    yield from _if(_IF_AT_LEAST, _X32, [(_RETURN, 0, 0, _REFUSE)])
    refused = [numbers for calls in _REFUSED.values() for numbers in calls.values()]
    for error, calls in ((errno.EPERM, refused), (errno.ENOSYS, [*_NOT_THERE.values()])):
        for numbers in calls:
            if (number := numbers[column]) is not None:
                yield from _if(_IF_EQUAL, number, [(_RETURN, 0, 0, _ERROR | error)])
    for numbers, groups in _REFUSED_WHEN.values():
        if (number := numbers[column]) is not None:
            checks = [step for conditions in groups for step in _refuse_when(conditions)]
            yield from _if(_IF_EQUAL, number, [*checks, (_RETURN, 0, 0, _ALLOW)])
    yield (_RETURN, 0, 0, _ALLOW)


def _if(comparison: int, value: int, then: list[_Step]) -> Iterator[_Step]:
    yield (comparison, 0, len(then), value)
    yield from then


def _unless(comparison: int, value: int, returned: int) -> Iterator[_Step]:
    yield (comparison, 1, 0, value)
    yield (_RETURN, 0, 0, returned)


def _refuse_when(conditions: tuple[_Condition, ...]) -> Iterator[_Step]:
    """Refuse if all conditions hold; otherwise go on behind."""
    for at, (place, comparison, value, wanted) in enumerate(conditions):
        behind = 2 * (len(conditions) - at - 1) + 1
        yield (_LOAD, 0, 0, place)
        yield (comparison, *((0, behind) if wanted else (behind, 0)), value)
    yield (_RETURN, 0, 0, _REFUSE)
