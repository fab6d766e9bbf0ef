"""TVM's pool of threads for a model: the CPUs of each thread, a part for each and no CPU in two parts; idle threads.

A pool that has slept for a while is woken by its first thread, and the kernel may put two of its threads on one CPU. An
inference ends before the kernel moves one of them, so it takes as long as with one thread fewer. Threads with disjoint
parts cannot meet. Within its part the kernel chooses, so that a small share of a large host is not tied to CPUs that
other programs use.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fractune_core.host.cgroups import ROOT
from fractune_core.host.cpu_topology import CpuTopology

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
