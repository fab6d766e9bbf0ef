"""The physical cores and the NUMA nodes of the CPUs that this process may use, as the kernel shows them, and as busy
processes find them.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fractune_core.codec.plain_json import JsonObject
from fractune_core.cpu_limits import MILLICORES, LimitSize
from fractune_core.host.cpus import ROOT, CpuTopology, limiting_cgroup, throttlings
from fractune_workers.confinement.limit_cgroups import LimitCgroups, SystemdScope
from fractune_workers.inventory.cpu_pairs import PairBurn, burn_pairs, likely_pairs

CGROUP, SCOPE = "cgroup", "systemd-run"
_ANY = LimitSize(MILLICORES)


@dataclass(frozen=True)
class LimitsHere(JsonObject):
    """What holds now, and what can be made."""

    cgroup: str = ""
    """the folder of the one that limits this process most, its own or one above; empty without a limit"""
    quota_m: int = 0
    """millicores that it allows, rounded up"""
    period_us: int = 0
    throttled_periods: int | None = None
    """in which this limit stopped its processes since it was made; None where the kernel does not count them"""
    throttled_s: float | None = None
    """for how long, of all CPUs together"""
    made_by: str = ""
    """`cgroup` or `systemd-run`: what holds a process to a limit; empty where neither can"""
    refusal: str = ""
    """why neither can"""


def limits_here(cgroups: LimitCgroups | None = None) -> LimitsHere:
    """Read from `/proc` and `/sys`. Where no cgroup can be made, a scope of systemd is tried for a moment."""
    cgroups = cgroups or LimitCgroups()
    made_by, refusal = _way(cgroups)
    limiting = limiting_cgroup(cgroups.root)
    if limiting is None:
        return LimitsHere(made_by=made_by, refusal=refusal)
    folder, quota = limiting
    stops = next(iter(throttlings([folder])), None)
    return LimitsHere(
        cgroup=str(folder),
        quota_m=quota.millicores,
        period_us=quota.period_us,
        throttled_periods=None if stops is None else stops.count,
        throttled_s=None if stops is None else stops.throttled_s,
        made_by=made_by,
        refusal=refusal,
    )


def _way(cgroups: LimitCgroups) -> tuple[str, str]:
    """How a limit is made here, or why none can be."""
    lacks = cgroups.lacks()
    if not lacks:
        return CGROUP, ""
    refuses = SystemdScope(_ANY).lacks()
    return ("", f"{lacks}, and {refuses}") if refuses else (SCOPE, "")


@dataclass(frozen=True)
class CpusHere(JsonObject):
    """CPUs by core and by node."""

    cores: tuple[tuple[int, ...], ...]
    """of each physical core the CPUs, as the kernel shows them"""
    nodes: tuple[tuple[int, ...], ...]
    """of each NUMA node the CPUs, as the kernel shows them"""
    pairs: tuple[PairBurn, ...] = ()
    """that were kept busy; empty unless that was wanted"""
    physical_cores: int = 0
    """with the pairs that turned out to share one; 0 = not known, since other programs disturbed a pair"""


def cpus_here(
    *, prove: bool, root: Path = ROOT, burned: Callable[[Iterable[tuple[int, int]]], list[PairBurn]] = burn_pairs
) -> CpusHere:
    """With `prove`, those pairs of CPUs are kept busy that may share a core."""
    allowed, topology = sorted(os.sched_getaffinity(0)), CpuTopology.read(root)
    cores, nodes = (tuple(map(tuple, groups)) for groups in (topology.cores(allowed), topology.nodes(allowed)))
    pairs = tuple(burned(likely_pairs(allowed, os.cpu_count() or 1))) if prove else ()
    known = all(pair.slowdown is not None for pair in pairs)
    return CpusHere(cores, nodes, pairs, _count(cores, pairs) if known else 0)


def _count(cores: Sequence[Sequence[int]], pairs: Sequence[PairBurn]) -> int:
    """Cores, those joined that have CPUs of a pair that shares one."""
    joined = [set(core) for core in cores]
    for pair in (pair for pair in pairs if pair.is_shared):
        met = [core for core in joined if not core.isdisjoint(pair.cpus)]
        joined = [core for core in joined if core.isdisjoint(pair.cpus)] + [set().union(*met)]
    return len(joined)
