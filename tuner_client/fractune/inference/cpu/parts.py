"""The CPUs of each thread of a model: a part for each thread, no CPU in two parts.

A pool that has slept for a while is woken by its first thread, and the kernel may put two of its threads on one CPU. An
inference ends before the kernel moves one of them, so it takes as long as with one thread fewer. Threads with disjoint
parts cannot meet. Within its part the kernel chooses, so that a small share of a large host is not tied to CPUs that
other programs use.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fractune_core.host.cgroups import ROOT
from fractune_core.host.cpu_topology import CpuTopology


def parts(cpus: Iterable[int], threads: int, root: Path = ROOT) -> list[tuple[int, ...]]:
    """`cpus` dealt out to `threads` threads, at most as many as CPUs. The CPUs of one core (by `/sys` below `root`) go
    to one thread, if the machine has enough cores.
    """
    allowed = sorted(cpus)
    hands = CpuTopology.read(root).cores(allowed)
    if len(hands) < threads:
        hands = [[cpu] for cpu in allowed]
    return [tuple(sorted(cpu for hand in hands[thread::threads] for cpu in hand)) for thread in range(threads)]
