"""The CPU share that this process is under already: its affinity, and the quota of its cgroup."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from fractune_core.errors import ShareUnavailable
from fractune_core.host.cgroups import ROOT, Quota, tightest_quota
from fractune_core.host.cpu_topology import CpuTopology, cpu_list
from fractune_core.host.limit_files import LimitFiles
from fractune_core.share_kinds import CPU, kind_of
from fractune_core.shares import Share

LIMITS = LimitFiles()
"""for all models of the process, so that it keeps few files open"""


@dataclass(frozen=True)
class ShareHere:
    """The share of the process."""

    units: int
    """cores: the number of threads that can work at the same time; of a GPU its SMs"""
    cpus: tuple[int, ...]
    """the CPUs of its threads"""
    reason: str
    """the origin of `units`, for people"""
    mechanism: str = "cpu"
    """the limiting mechanism, as in the text of a share; `full` for a whole GPU"""
    mig_profile: str = ""
    """of a MIG instance: `1g.18gb`"""
    quota: Quota | None = None
    """the quota that allows less than all of `cpus`; None also where `units` were requested"""
    warning: str = ""
    """a limit that the environment names and that is not in force, with a remedy; empty if there is none"""

    @property
    def unit(self) -> str:
        """`core` or `sm`"""
        return kind_of(self.mechanism).unit

    @property
    def threads(self) -> int:
        """threads of the host that run a model: the code around a GPU's kernels needs one"""
        return self.units if kind_of(self.mechanism).device_kind == CPU else 1


def share_here(root: Path = ROOT) -> ShareHere:
    """The share of this process, read again from `/proc` and `/sys` below `root`. Units of a quota are its whole cores,
    rounded down, at least one: a model with times takes as many as they show to be best (`under_limit`).
    """
    cpus = allowed_cpus(root)
    quota = tightest_quota(root)
    if quota is None or quota.cores >= len(cpus):
        return ShareHere(len(cpus), cpus, f"{_cores(len(cpus))} by its affinity")
    reason = f"{_cores(quota.cores)} by the quota of its cgroup (its affinity has {_cores(len(cpus))})"
    return ShareHere(max(1, math.floor(quota.cores)), cpus, reason, quota=quota)


def confine(share: Share) -> None:
    """Confine this process to `share`: CPUs that it may use, of different cores if possible (`CpuTopology.choose`).

    Existing threads stay unchanged; those of a model are made after. Raises ShareUnavailable when the share is larger
    than the CPUs of the process, BadRequest for a share that cannot serve a model on a CPU.
    """
    share.check_serves(CPU)
    allowed = sorted(os.sched_getaffinity(0))
    if share.cores > len(allowed):
        raise ShareUnavailable(
            f"share '{share}' is larger than the {_cores(len(allowed))} of this process; "
            f"request cpu:{len(allowed)} at most"
        )
    os.sched_setaffinity(0, CpuTopology.read().choose(allowed, share.cores))


def _cores(count: float) -> str:
    return f"{count:g} core{'' if count == 1 else 's'}"


def allowed_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """CPUs of the process's first thread, which `taskset` and containers set."""
    try:
        for line in (root / "proc/self/status").read_text().splitlines():
            if line.startswith("Cpus_allowed_list:"):
                return tuple(cpu_list(line.partition(":")[2]))
    except (OSError, ValueError):
        pass
    return tuple(sorted(os.sched_getaffinity(0)))
