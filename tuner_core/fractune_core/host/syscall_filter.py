"""Filters of system calls (seccomp): the kernel refuses a call with EPERM, to children too.

The first one lists refused calls: ways out of a process (sockets, other processes, other files' owners and modes,
namespaces). New versions of the libraries that read and compile must not trip over it. Machine code of strangers needs
no library: the process that runs it has a second filter, which lists the allowed calls.
"""

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Callable, Collection, Iterator, Sequence

_Numbers = tuple[int | None, int | None]
"""x86-64, aarch64; None where the architecture lacks the call"""

PROGRAMS, PROCESSES = "it would run programs", "it would start processes, or own memory that no limit counts"
UNIX_SOCKETS = "it would reach other processes of this host"
SHARED_MEMORY = "it would share memory with others"
OTHERS_FILES = "Landlock lets it change owners, modes and times of files that it cannot open"
OWN_CPU_LIMIT = "it would lift its limit on CPU time"
LOG = "it would empty the log that it inherits"
NEEDED_BY_CUDA = (UNIX_SOCKETS, SHARED_MEMORY, OTHERS_FILES, LOG)
"""CUDA's driver reaches an MPS daemon over a Unix socket, and sizes files of shared memory"""

_SET_FILTER, _ALL_THREADS, _SPEC_ALLOW = 1, 1, 4
"""Without SPEC_ALLOW, kernels before 5.16 slow a process with a filter down: its loads wait for older stores."""
_SECCOMP = (317, 277)
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
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
_SET_DEATH_SIGNAL = 1
_SAME_HOST = 1
"""AF_UNIX"""
_NEW_THREAD = 0x10000
"""a flag of `clone`"""

# Groups of calls, each with why a process in a sandbox must not have it.
_REFUSED: dict[str, dict[str, _Numbers]] = {
    "it would reach others": {
        "io_uring_setup": (425, 425),  # opens sockets without a system call
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
    },
    SHARED_MEMORY: {
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
    OTHERS_FILES: {
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
    LOG: {
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
_TO_RUN: dict[str, dict[str, _Numbers]] = {
    PROGRAMS: {
        "execve": (59, 221),
        "execveat": (322, 281),
    },
    PROCESSES: {
        "fork": (57, None),
        "vfork": (58, None),
        "memfd_create": (319, 279),  # its limit of memory counts no such file; as forks, it multiplies the limit
        "memfd_secret": (447, 447),
        "tkill": (200, 130),
        "rt_sigqueueinfo": (129, 138),
        "rt_tgsigqueueinfo": (297, 240),
        "pidfd_send_signal": (424, 424),
    },
}
"""refused only where it is asked for"""
_MAKING_FILES: dict[str, _Numbers] = {
    "creat": (85, None),
    "openat2": (437, 437),  # a filter cannot see its flags
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
}
_MEASURING = {
    "its worker's link, its log, and what it may read": """
        read:0:63 readv:19:65 pread64:17:67 preadv:295:69 preadv2:327:286 write:1:64 writev:20:66 close:3:57
        close_range:436:436
        lseek:8:62 dup:32:23 fcntl:72:25 ioctl:16:29 poll:7:- ppoll:271:73 select:23:- pselect6:270:72
        fstat:5:80 stat:4:- lstat:6:- newfstatat:262:79 statx:332:291 access:21:- faccessat:269:48
        faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents64:217:61 getcwd:79:17 statfs:137:43
        fstatfs:138:44
    """,
    "memory": """
        mmap:9:222 munmap:11:215 mremap:25:216 mprotect:10:226 madvise:28:233 brk:12:214
    """,
    "threads and signals of its own, as far as the first filter lets it": """
        clone:56:220 exit:60:93 exit_group:231:94 futex:202:98 futex_waitv:449:449 futex_wake:454:454
        futex_wait:455:455 futex_requeue:456:456 set_robust_list:273:99 get_robust_list:274:100
        set_tid_address:218:96 rseq:334:293 membarrier:324:283 arch_prctl:158:- map_shadow_stack:453:453
        prctl:157:167 gettid:186:178 getpid:39:172 getppid:110:173 getpgid:121:155 sched_yield:24:124
        getcpu:309:168 sched_getaffinity:204:123 sched_setaffinity:203:122 sched_getparam:143:121
        sched_getscheduler:145:120 sched_get_priority_min:147:126 sched_get_priority_max:146:125
        rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 sigaltstack:131:132
        restart_syscall:219:128 kill:62:129 tgkill:234:131
    """,
    "time, and what the system is": """
        clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169
        time:201:- times:100:153 uname:63:160 sysinfo:99:179 getrusage:98:165 getrlimit:97:163 prlimit64:302:261
        getrandom:318:278 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177
    """,
}
"""What a process that runs candidates may call once it is ready, as NAME:X86-64:AARCH64. A traced process made these
calls, or other versions of the C library, of Python and of TVM make them in their place."""
_NEWEST = 466
"""Calls with a higher number are newer than this list: the C library does without them if the kernel has none."""
_NOT_THERE: dict[str, _Numbers] = {"clone3": (435, 435)}
"""refused as by an older kernel: a filter cannot see its flags, and glibc calls `clone` instead"""

_Condition = tuple[int, int, int, bool]
"""of an argument: where it lies, by which comparison with which value, and whether that must hold"""
_When = dict[str, tuple[_Numbers, tuple[tuple[_Condition, ...], ...]]]


def _low(argument: int) -> int:
    return _ARGUMENTS_AT + 8 * argument


def _high(argument: int) -> int:
    return _low(argument) + 4


def _is_not(at: int, value: int) -> _Condition:
    return (at, _IF_EQUAL, value, False)


def _is(at: int, value: int) -> _Condition:
    return (at, _IF_EQUAL, value, True)


def _lacks(at: int, bits: int) -> _Condition:
    return (at, _IF_ANY_BIT, bits, False)


_NAMESPACES = ((_low(0), _IF_ANY_BIT, _NEW_NAMESPACES, True),)
_IS_NOT_AS, _IS_NOT_CPU = (_is_not(_low(1), limit) for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU))
_NEW_LIMIT = (_low(2), _high(2))
_OTHER_PROCESS = ((_is_not(_low(0), _OWN),),)
_REFUSED_WHEN: _When = {
    # A call is refused if all conditions of any one group hold.
    "socket": ((41, 198), ((),)),
    # A socket pair of streams is connected already and reaches no other process. A pair of datagrams can send to others
    # by their path: these are the bits of SOCK_DGRAM, SOCK_RAW, SOCK_RDM and SOCK_SEQPACKET.
    "socketpair": ((53, 199), (((_low(1), _IF_ANY_BIT, 0b1110, True),),)),
    "clone": ((56, 220), (_NAMESPACES,)),
    "prlimit64": (
        (302, 261),
        (
            *_OTHER_PROCESS,
            # To set any but that on addresses, which forks lower for themselves.
            *((_IS_NOT_AS, _is_not(half, 0)) for half in _NEW_LIMIT),
        ),
    ),
    # Whom the kernel signals when a file is ready, and by which signal.
    "fcntl": ((72, 25), tuple((_is(_low(1), each),) for each in (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX))),
    "ioctl": ((16, 29), tuple((_is(_low(1), each),) for each in (_FIOSETOWN, _SIOCSPGRP))),
    "sched_setaffinity": ((203, 122), _OTHER_PROCESS),
    "sched_setparam": ((142, 118), _OTHER_PROCESS),
    "sched_setscheduler": ((144, 119), _OTHER_PROCESS),
    "sched_setattr": ((314, 274), _OTHER_PROCESS),
    "setpriority": ((141, 140), ((_is_not(_low(0), _ONE_PROCESS),), (_is_not(_low(1), _OWN),))),
    "ioprio_set": ((251, 30), ((_is_not(_low(0), _ONE_PROCESS_IO),), (_is_not(_low(1), _OWN),))),
}

_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_WRITING: _When = {
    "open": ((2, None), (((_low(1), _IF_ANY_BIT, _TO_WRITE, True),),)),
    "openat": ((257, 56), (((_low(2), _IF_ANY_BIT, _TO_WRITE, True),),)),
}


def _conditional(groups: Collection[str]) -> _When:
    """As `_REFUSED_WHEN`, in a sandbox that refuses PROCESSES, or spares one of the others."""
    found = dict(_REFUSED_WHEN)
    if PROCESSES in groups:
        to_others = ((_is_not(_low(0), os.getpid()),),)
        found |= {
            "clone": ((56, 220), (_NAMESPACES, (_lacks(_low(0), _NEW_THREAD),))),
            "prctl": ((157, 167), ((_is(_low(0), _SET_DEATH_SIGNAL),),)),  # it dies with its parent
            # Landlock refuses signals only from Linux 6.12 on.
            "kill": ((62, 129), to_others),
            "tgkill": ((234, 131), to_others),
        }
    if OWN_CPU_LIMIT in groups:
        other = ((_IS_NOT_AS, _IS_NOT_CPU, _is_not(half, 0)) for half in _NEW_LIMIT)
        found |= {"prlimit64": ((302, 261), (*_OTHER_PROCESS, *other))}
    if UNIX_SOCKETS in groups:
        found |= {"socket": ((41, 198), ((_is_not(_low(0), _SAME_HOST),),))}
    return found


_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_Step = tuple[int, int, int, int]
"""of a program of BPF: a code, how far to jump if so and if not, and a value"""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_to_write_files() -> None:
    """Let no thread of this process open a file to write, or make one, from now on. Raises OSError as below."""
    _install(lambda column: _refusing(column, [_MAKING_FILES], _WRITING), _SPEC_ALLOW | _ALL_THREADS)


def allow_measuring_only() -> None:
    """Let the threads of this process make from now on only the calls of a measurement, in addition to the filter that
    they have. They open files to read alone. Raises OSError as below.
    """
    _install(_allowing, _SPEC_ALLOW | _ALL_THREADS)


def refuse_system_calls(refused: Collection[str] = (), spared: Collection[str] = ()) -> None:
    """Install the filter for this thread and its children. The process must have given up new privileges. `refused`:
    groups of calls that are refused too (PROGRAMS, PROCESSES); `spared`: groups that are not (NEEDED_BY_CUDA).

    Raises OSError when the kernel takes no filter, or the numbers of the architecture are not known here.
    """
    groups = [calls for name, calls in _REFUSED.items() if name not in spared]
    groups += [calls for name, calls in _TO_RUN.items() if name in refused]
    when = _conditional([*refused, *spared])
    _install(lambda column: _refusing(column, groups, when), _SPEC_ALLOW)


def _install(rules: Callable[[int], Iterator[_Step]], flags: int) -> None:
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"the system calls of {machine} are not known here")
    architecture, column = _ARCHITECTURES[machine]
    instructions = b"".join(struct.pack("HBBI", *step) for step in [*_begin(architecture), *rules(column)])
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_SECCOMP[column]), _SET_FILTER, flags, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def _begin(architecture: int) -> Iterator[_Step]:
    yield (_LOAD, 0, 0, _ARCHITECTURE_AT)
    yield from _unless(_IF_EQUAL, architecture, _REFUSE)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    yield from _if(_IF_AT_LEAST, _X32, [(_RETURN, 0, 0, _REFUSE)])


def _refusing(column: int, groups: Sequence[dict[str, _Numbers]], conditional: _When) -> Iterator[_Step]:
    for error, calls in ((errno.EPERM, groups), (errno.ENOSYS, [_NOT_THERE])):
        for listed in _numbers(calls, column):
            yield from _if(_IF_EQUAL, listed, [(_RETURN, 0, 0, _ERROR | error)])
    yield from _checking(column, conditional)
    yield (_RETURN, 0, 0, _ALLOW)


def _allowing(column: int) -> Iterator[_Step]:
    for call in " ".join(_MEASURING.values()).split():
        number = call.split(":")[1 + column]
        if number != "-":
            yield from _if(_IF_EQUAL, int(number), [(_RETURN, 0, 0, _ALLOW)])
    yield from _checking(column, _WRITING)
    for listed in _numbers([_NOT_THERE], column):
        yield from _if(_IF_EQUAL, listed, [(_RETURN, 0, 0, _ERROR | errno.ENOSYS)])
    yield from _if(_IF_AT_LEAST, _NEWEST + 1, [(_RETURN, 0, 0, _ERROR | errno.ENOSYS)])
    yield (_RETURN, 0, 0, _REFUSE)


def _checking(column: int, conditional: _When) -> Iterator[_Step]:
    for numbers, checked in conditional.values():
        if (number := numbers[column]) is not None:
            checks = [step for conditions in checked for step in _refuse_when(conditions)]
            yield from _if(_IF_EQUAL, number, [*checks, (_RETURN, 0, 0, _ALLOW)])


def _numbers(groups: Sequence[dict[str, _Numbers]], column: int) -> Iterator[int]:
    for calls in groups:
        yield from (number for numbers in calls.values() if (number := numbers[column]) is not None)


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
