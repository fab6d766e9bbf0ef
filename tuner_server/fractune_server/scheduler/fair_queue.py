"""Which job gets the next round: tenants share the fleet evenly, and the jobs of a tenant share by their weights.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) of tenants, and of the jobs within a tenant. Handing out
measurements costs their number. Each tenant and each job has a virtual time that grows by cost over weight, and the
smallest one is next. A job that wanted nothing for a while, or could get nothing, resumes at the present virtual time:
it has saved nothing up, and a new job owes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Claimant:
    """A job in the fair queue."""

    job: str
    tenant: str
    """owner of the job; jobs of one tenant share what the tenant gets"""
    weight: int = 1
    since: float = 0.0
    """when the job was made; among equals the older one is next"""


@dataclass
class _VirtualTimes:
    """Virtual times, in measurements over weight, of tenants or of a tenant's jobs."""

    now: float = 0.0
    """start of the last round that was scheduled"""
    ends: dict[str, float] = field(default_factory=dict)
    """end of what was handed out, by name; absent = not after `now`"""

    def begin(self, name: str) -> float:
        return max(self.now, self.ends.get(name, 0.0))

    def charge(self, name: str, cost: float, *, scheduled: bool) -> None:
        begin = self.begin(name)
        self.ends[name] = begin + cost
        if scheduled and begin > self.now:
            self.now = begin
            self.ends = {each: end for each, end in self.ends.items() if end > begin}


class FairQueue:
    """Not thread-safe: only the engine's thread calls it. A new queue does not know what an older one handed out."""

    def __init__(self) -> None:
        self._tenants = _VirtualTimes()
        self._jobs: dict[str, _VirtualTimes] = {}
        """by tenant"""

    def keep(self, claimants: Iterable[Claimant]) -> None:
        """Forget all jobs but these: the others have ended."""
        present: dict[str, set[str]] = {}
        for each in claimants:
            present.setdefault(each.tenant, set()).add(each.job)
        self._jobs = {tenant: times for tenant, times in self._jobs.items() if tenant in present}
        for tenant, times in self._jobs.items():
            times.ends = {job: end for job, end in times.ends.items() if job in present[tenant]}

    def sort_key(self, claimant: Claimant) -> tuple[float, ...]:
        """The claimant with the smallest key is next."""
        begins = self._tenants.begin(claimant.tenant), self._of_tenant(claimant).begin(claimant.job)
        return *begins, -claimant.weight, claimant.since

    def is_behind(self, claimant: Claimant, other: Claimant) -> bool:
        """Whether the claimant has been given less than the other one."""
        if claimant.tenant != other.tenant:
            return self._tenants.begin(claimant.tenant) < self._tenants.begin(other.tenant)
        times = self._of_tenant(claimant)
        return times.begin(claimant.job) < times.begin(other.job)

    def charge(self, claimant: Claimant, measurements: int, *, scheduled: bool) -> None:
        """The claimant gets these measurements; `scheduled`: because it was next."""
        cost = measurements / claimant.weight
        self._tenants.charge(claimant.tenant, cost, scheduled=scheduled)
        self._of_tenant(claimant).charge(claimant.job, cost, scheduled=scheduled)

    def _of_tenant(self, claimant: Claimant) -> _VirtualTimes:
        return self._jobs.setdefault(claimant.tenant, _VirtualTimes())
