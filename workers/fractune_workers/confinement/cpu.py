"""CPU shares: N cores, by scheduler affinity, with as many TVM threads as cores."""

import os
from collections.abc import Sequence
from pathlib import Path

from fractune_core.cpu_limits import SPIN_COUNT, SPIN_YIELDS
from fractune_core.errors import ShareUnavailable
from fractune_core.host.cpus import ROOT, CpuTopology, cpu_quota
from fractune_core.host.machine import host_memory_bytes
from fractune_core.shares import GrantedShare, Share, units_text
from fractune_workers.confinement.base import Confinement

_LIKELY_MILLICORES = 50
"""cores: who asks for as many on a machine that has fewer may have left out the `m` of a limit"""


class CpuConfinement(Confinement):
    """A `cpu:N` share on the cores `units`, or on N that this process may use (`CpuTopology.choose`).

    `root` is the folder below which `/proc` and `/sys` tell of this process's cgroups and of the machine's cores.
    """

    def __init__(self, share: Share, units: Sequence[int] = (), root: Path = ROOT) -> None:
        self.share = share
        self._root = root
        self._allowed = sorted(os.sched_getaffinity(0))
        self._topology = CpuTopology.read(root)
        self.cores: list[int] = list(units) or self._topology.choose(self._allowed, share.cores)

    def probe(self) -> None:
        wanted = self.share.cores
        if wanted > len(self._allowed):
            limit = f", or write the CPU limit cpu:{wanted}m" if wanted >= _LIKELY_MILLICORES else ""
            raise ShareUnavailable(
                f"share '{self.share}' is larger than this machine: {units_text(len(self._allowed), 'core')} may be "
                f"used here; ask for cpu:{len(self._allowed)} at most{limit}"
            )
        if len(self.cores) != wanted or not set(self.cores) <= set(self._allowed):
            raise ShareUnavailable(
                f"share '{self.share}': cores {self.cores} are not {wanted} of the cores that may be used here "
                f"({self._allowed})"
            )
        self._check_quota()

    def environment(self) -> dict[str, str]:
        return thread_variables(self.share.cores)

    def enter(self) -> None:
        self.probe()
        os.sched_setaffinity(0, self.cores)

    def verify(self) -> GrantedShare:
        """The granted cores: what every thread of this process may use, as the kernel tells."""
        check_affinities(self.share, self.cores)
        return GrantedShare(
            share=str(self.share),
            units=len(self.cores),
            units_total=os.cpu_count() or len(self._allowed),
            unit=self.share.kind.unit,
            memory_bytes=host_memory_bytes(),
            reserved=False,
            ids=tuple(self.cores),
            physical_cores=len(self._topology.cores(self.cores)),
        )

    def leave(self) -> None:
        os.sched_setaffinity(0, self._allowed)

    def _check_quota(self) -> None:
        quota = cpu_quota(self._root)
        if quota is not None and quota < self.share.cores:
            remedy = "ask for a smaller share" if quota >= 1 else "run this outside of that limit"
            raise ShareUnavailable(
                f"share '{self.share}' cannot be verified: the quota of a cgroup caps this process at {quota:g} "
                f"core{'' if quota == 1 else 's'}; raise the limit of its container or slice, or {remedy}"
            )


def thread_variables(cores: int) -> dict[str, str]:
    """TVM would bind its threads to cores 0..N-1 whatever the affinity says, and idle ones would spin for 0.3 s, longer
    than in a service. OpenMP libraries would start a thread for each core of the machine.
    """
    number = str(cores)
    return {"TVM_NUM_THREADS": number, "TVM_BIND_THREADS": "0", "OMP_NUM_THREADS": number, SPIN_COUNT: SPIN_YIELDS}


def check_affinities(share: Share, cores: Sequence[int]) -> None:
    """Raises ShareUnavailable unless every thread of this process may run on these cores alone."""
    strays = {tid: allowed for tid, allowed in thread_affinities().items() if not allowed <= set(cores)}
    if strays:
        tid, allowed = next(iter(strays.items()))
        raise ShareUnavailable(
            f"share '{share}' cannot be verified: thread {tid} may run on cores {sorted(allowed)}, "
            f"not only on {list(cores)}; start this worker with TVM_BIND_THREADS=0"
        )


def thread_affinities() -> dict[int, set[int]]:
    """Cores that each thread of this process may use, by thread id."""
    affinities = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            affinities[int(task.name)] = set(os.sched_getaffinity(int(task.name)))
        except ProcessLookupError:
            continue
    return affinities
