"""CPU limits (`cpu:1500m`): CPU time in each period, by the quota of a cgroup.

A limit that holds here already is accepted. Otherwise the supervisor makes a child cgroup, and the confined process
joins it. Where the supervisor may not make one, the process is started in a scope of systemd.
"""

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fractune_core.cpu_limits import MILLICORES, GrantedLimit, LimitSize
from fractune_core.errors import ShareUnavailable
from fractune_core.host.cpus import CpuTopology, Quota, tightest_quota
from fractune_core.host.machine import host_memory_bytes
from fractune_core.shares import GrantedShare, Share, units_text
from fractune_workers.confinement.base import Confinement
from fractune_workers.confinement.burn import Burn, burn
from fractune_workers.confinement.cpu import check_affinities, thread_variables
from fractune_workers.confinement.limit_cgroups import LimitCgroups, SystemdScope
from fractune_workers.locks.core_locks import default_lock_dir
from fractune_workers.locks.flock import locked

_CGROUP = "FRACTUNE_LIMIT_CGROUP"
"""variable with the cgroup that the confined process joins; empty = its limit holds already"""
_ALLOWED = 0.1
"""between the limit and what busy processes get, relative"""
_TRIES = 3
_PATIENCE_S = 15.0
"""Processes that get too little are tried again for so long: other workers of a stack start at the same time"""
_PERIODS = 5
_LEAST_BURNED_S = 0.1
"""CPU time of a proof: the kernel stops a process up to a tick late, which must not matter"""


class CpuLimitConfinement(Confinement):
    """A limit on the CPUs `units`, or on as many as the share spans of those that this process may use."""

    def __init__(
        self,
        share: Share,
        units: Sequence[int] = (),
        cgroups: LimitCgroups | None = None,
        burned: Callable[[int, float, float], Burn] = burn,
    ) -> None:
        self.share = share
        self._size = LimitSize.parse(share.size)
        self._cgroups = cgroups or LimitCgroups()
        self._burned = burned
        self._allowed = sorted(os.sched_getaffinity(0))
        self._topology = CpuTopology.read(self._cgroups.root)
        self.cores: list[int] = list(units) or self._topology.choose(
            self._allowed, self._size.span or len(self._allowed)
        )
        self._burned_m = 0
        self._made: Path | None = None
        self._came_from: Path | None = None

    def probe(self) -> None:
        here = len(self._allowed)
        if max(self._size.span, self._size.cores) > here:
            raise ShareUnavailable(
                f"share '{self.share}' is larger than this machine: {units_text(here, 'core')} may be used here; ask "
                f"for cpu:{here * MILLICORES}m at most, and a span of @{here} at most"
            )
        if self._holds():
            return
        quota = tightest_quota(self._cgroups.root)
        if quota is not None and quota.cores * MILLICORES < self._size.limit_m:
            raise ShareUnavailable(
                f"share '{self.share}' cannot be had: the quota of a cgroup caps this process at {_text(quota)}; raise "
                "the limit of its container or slice, or ask for a smaller share"
            )
        if (lacks := self._cgroups.lacks()) and (refuses := self._scope.lacks()):
            raise self._refusal(f"{lacks}, and {refuses}")

    def environment(self) -> dict[str, str]:
        if self._made is None and not self._holds() and not self._cgroups.lacks():
            try:
                self._made = self._cgroups.make(self._size)
            except OSError as error:
                raise self._refusal(str(error)) from error
        return {**thread_variables(len(self.cores)), _CGROUP: str(self._made or "")}

    @property
    def cgroup(self) -> Path | None:
        """That a limited process joins, since `environment`; None where it needs none of its own."""
        return self._made

    def launcher(self) -> list[str]:
        """The command in front of that of the confined process, in which it starts under the limit; empty where it
        joins a cgroup, or is under the limit already.
        """
        return self._scope.command if self._cgroups.lacks() and not self._holds() else []

    def enter(self) -> None:
        os.sched_setaffinity(0, self.cores)
        if folder := os.environ.get(_CGROUP):
            self._came_from = self._cgroups.current()
            self._join(Path(folder))
        self._burned_m = self._burn(self._check_holds())  # now: a process in a sandbox starts no others

    def verify(self) -> GrantedShare:
        """The limit, once it is the least of all cgroups above this process, and all threads are under it. Busy
        processes got as much as it allows, when it was entered or now.
        """
        check_affinities(self.share, self.cores)
        self._check_threads()
        quota = self._check_holds()
        return GrantedShare(
            share=str(self.share),
            units=self._size.limit_m,
            units_total=MILLICORES * (os.cpu_count() or len(self._allowed)),
            unit=self.share.kind.unit,
            memory_bytes=host_memory_bytes(),
            reserved=False,
            ids=tuple(self.cores),
            physical_cores=len(self._topology.cores(self.cores)),
            limit=GrantedLimit(
                quota_m=round(quota.cores * MILLICORES),
                request_m=self._size.request_m,
                span=len(self.cores),
                period_us=quota.period_us,
                burst_us=quota.burst_us,
                burned_m=self._burned_m or self._burn(quota),
            ),
        )

    def leave(self) -> None:
        os.sched_setaffinity(0, self._allowed)
        if self._came_from is not None:
            self._join(self._came_from)
            self._came_from = None
        if self._made is not None:
            with contextlib.suppress(OSError):  # a process is left in it: the next start removes it
                self._cgroups.remove(self._made)
            self._made = None

    def _join(self, folder: Path) -> None:
        try:
            self._cgroups.join(folder)
        except OSError as error:
            raise ShareUnavailable(
                f"share '{self.share}': this process could not join the cgroup {folder} ({error}); start the worker "
                "again"
            ) from error

    def _holds(self) -> bool:
        """Whether this process is under just this limit."""
        quota, size = tightest_quota(self._cgroups.root), self._size
        return (
            quota is not None
            and (quota.period_us, quota.quota_us) == (size.period_us, size.quota_us)
            and (not size.request_m or self._cgroups.weight() == self._cgroups.weight_of(size.request_m))
        )

    def _check_holds(self) -> Quota:
        quota = tightest_quota(self._cgroups.root)
        if quota is None or not self._holds():
            found = "no quota" if quota is None else f"a quota of {_text(quota)}"
            raise ShareUnavailable(
                f"share '{self.share}' cannot be verified: the cgroups of this process have {found}, or another "
                "weight; start this worker with the environment of its confinement"
            )
        return quota

    def _check_threads(self) -> None:
        """A thread of version 1 may be in another cgroup than its process."""
        cgroups = {path.read_text() for path in (self._cgroups.root / "proc/self/task").glob("*/cgroup")}
        if len(cgroups) > 1:
            raise ShareUnavailable(
                f"share '{self.share}' cannot be verified: threads of this process are in several cgroups; start the "
                "worker again, and move whole processes only"
            )

    def _burn(self, quota: Quota) -> int:
        """Millicores that busy processes get, one more than can have a whole core each."""
        processes = min(len(self.cores), self._size.limit_m // MILLICORES + 1)
        period_s, unused = quota.period_us * 1e-6, processes - quota.cores
        # What idle periods saved up is spent first.
        settle_s = period_s + (quota.burst_us * 1e-6 / unused if unused else 0.0)
        measure_s = period_s * max(_PERIODS, math.ceil(_LEAST_BURNED_S / (quota.cores * period_s)))
        patient_until_s = time.monotonic() + _PATIENCE_S
        for tries in itertools.count(1):
            with _only_burn():
                found = self._burned(processes, settle_s, measure_s)
            if abs(found.cores / quota.cores - 1) <= _ALLOWED:
                return round(found.cores * MILLICORES)
            is_final = found.cores > quota.cores or time.monotonic() > patient_until_s
            if tries >= _TRIES and is_final:
                break
        raise ShareUnavailable(
            f"share '{self.share}' cannot be verified: busy processes got {found.cores * MILLICORES:.0f}m; "
            f"{_why(found, quota)}"
        )

    @property
    def _scope(self) -> SystemdScope:
        request_m = self._size.request_m
        return SystemdScope(self._size, self._cgroups.systemd_weight(request_m) if request_m else "")

    def _refusal(self, why: str) -> ShareUnavailable:
        return ShareUnavailable(
            f"share '{self.share}' cannot be had: {why}; run this as root, in a login session of a systemd that "
            f"delegates the CPU controller, or in a container with --cpus {self._size.limit_m / MILLICORES:g}"
        )


@contextlib.contextmanager
def _only_burn() -> Iterator[None]:
    """Limits are proved one after the other: together they can be more than the CPUs have."""
    with locked(default_lock_dir() / "limit-proof"):
        yield


def _why(found: Burn, quota: Quota) -> str:
    if found.cores > quota.cores:
        return "the quota is not in force; start the worker again"
    if (every_s := found.renewed_every_s) is not None:
        return (
            f"they are stopped and go on about every {every_s * 1e3:.0f} ms: a container or slice above has a lower "
            "quota, or other processes use up this one; raise that quota, or end these processes"
        )
    return "other programs use these CPUs; end them, or wait until they are done"


def _text(quota: Quota) -> str:
    return f"{quota.cores * MILLICORES:.0f}m in {quota.period_us / 1000:g} ms"
