"""The threads that run a model: the CPUs of each, a part for each and no CPU in two parts; idle ones; and their numbers
below the smallest normal one.

A pool that has slept for a while is woken by its first thread, and the kernel may put two of its threads on one CPU. An
inference ends before the kernel moves one of them, so it takes as long as with one thread fewer. Threads with disjoint
parts cannot meet. Within its part the kernel chooses, so that a small share of a large host is not tied to CPUs that
other programs use.

Many processors compute a number below the smallest normal one of its type (a denormal; of float32 below 1.2e-38) some
hundred times slower than another. On x86-64 a thread has a floating-point mode, in which it takes them as zero
(denormals are zero) and gives zero for them (flush to zero).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fractune_core.host.cgroups import ROOT
from fractune_core.host.cpu_topology import CpuTopology

_P = ParamSpec("_P")
_T = TypeVar("_T")

SPIN_COUNT, SPIN_YIELDS = "TVM_THREAD_POOL_SPIN_COUNT", "1000"
"""Spins of a thread of TVM's pool for more work before it sleeps: some 1 ms on a free core, longer than between two
operators of a model. TVM's own number is 300 times as long, on cores that others need, or the next model"""
_SHARE_ALL_CPUS = -3
"""TVM's mode of a thread pool with all threads on all CPUs of a list"""
_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""The function that TVM calls on each thread of a pool: number of the thread, two addresses that are not used here; 0 =
done"""


def parts(cpus: Iterable[int], threads: int, root: Path = ROOT) -> list[tuple[int, ...]]:
    """The part of `cpus` for each of `threads` threads, which are at most as many as CPUs. The CPUs of one core (by
    `/sys` below `root`) go to one thread, if the machine has enough cores.
    """
    allowed = sorted(cpus)
    hands = CpuTopology.read(root).cores(allowed)
    if len(hands) < threads:
        hands = [[cpu] for cpu in allowed]
    return [tuple(sorted(cpu for hand in hands[thread::threads] for cpu in hand)) for thread in range(threads)]


def use_cpus(parts: Sequence[Sequence[int]], configure: Callable[..., Any], library: Any) -> None:
    """Give the calling thread a pool of as many threads as `parts`, itself the first of them, each on the CPUs of its
    part. The thread must not have run a model. TVM keeps a pool for each thread that runs models. It cannot grow later:
    a larger pool takes another thread. If the kernel refuses a part, the thread keeps its CPUs.

    `configure` is TVM's `runtime.config_threadpool`, and `library` its runtime.
    """
    # TVM makes a pool with as many threads as named CPUs.
    configure(_SHARE_ALL_CPUS, len(parts), [str(part[0]) for part in parts])

    # TVM can bind a thread to one CPU or to all, and its environment may forbid that. So each thread does it itself.
    def place(thread: int, _group: int | None, _data: int | None) -> int:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, parts[thread])
        return 0

    library.TVMBackendParallelLaunch(_TASK(place), None, len(parts))


class _Mode(ctypes.Structure):
    """The GNU C library's `femode_t` of x86-64."""

    _fields_ = (("x87", ctypes.c_uint16), ("reserved", ctypes.c_uint16), ("mxcsr", ctypes.c_uint32))


_DEFAULT = 0x037F, 0, 0x1F80
"""of a new process: numbers are rounded to the nearest, and no exception is raised"""
_FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
_NORMAL = _Mode(*_DEFAULT)
_FLUSHED = _Mode(*_DEFAULT[:2], _DEFAULT[2] | _FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO)


def with_denormals(function: Callable[_P, _T], *, kept: bool) -> Callable[_P, _T]:
    """`function`, which computes with denormals (`kept`) or takes and gives zero for them, whatever the mode of its
    caller. The caller's thread is in its own mode again afterwards, also after an exception. No two threads may call it
    at the same time. On a processor without this mode it is `function` itself.
    """
    access = _access()
    if access is None:
        return function
    (read, write), mode = access, ctypes.byref(_NORMAL if kept else _FLUSHED)
    before = ctypes.byref(_Mode())  # made once: a run of a small model takes microseconds

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        read(before)
        write(mode)
        try:
            return function(*args, **kwargs)
        finally:
            write(before)

    return call


@functools.cache
def _access() -> tuple[Callable[[Any], None], Callable[[Any], None]] | None:
    """The C library's functions that read and write the mode of the calling thread."""
    if platform.machine() != "x86_64":
        return None
    try:
        # Both return at once, so they keep the interpreter's lock.
        library = ctypes.PyDLL("libm.so.6")
        read, write = library.fegetmode, library.fesetmode
    except (OSError, AttributeError):  # another C library than GNU's
        return None
    read.restype = write.restype = None  # their result says nothing, and to make a number of it takes time
    return read, write
