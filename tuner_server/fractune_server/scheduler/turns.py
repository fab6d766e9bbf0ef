"""Whose turn it is: tenants share the fleet evenly, and so do the jobs of each, by their weights.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), of tenants and within a tenant of its jobs. What is
handed out has a cost: measurements. Everybody has a time of their own, which grows by cost over weight; the next turn
goes to whoever's comes first. Who wanted nothing for a while, or could not be given anything, comes back at the
present: nothing is saved up, and a newcomer owes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Claimant:
    """A job as it takes its turns."""

    job: str
    tenant: str
    """whose it is; jobs of the same tenant share with each other what the tenant gets"""
    weight: int = 1
    since: float = 0.0
    """when it came; the older goes first where all else is equal"""


@dataclass
class _Line:
    """Those who share evenly, by name. Times are measurements over weight."""

    now: float = 0.0
    """when the last turn began"""
    ends: dict[str, float] = field(default_factory=dict)
    """until when somebody has been given; absent = not beyond the present"""

    def begin(self, name: str) -> float:
        return max(self.now, self.ends.get(name, 0.0))

    def charge(self, name: str, cost: float, *, in_turn: bool) -> None:
        begin = self.begin(name)
        self.ends[name] = begin + cost
        if in_turn and begin > self.now:
            self.now = begin
            self.ends = {each: end for each, end in self.ends.items() if end > begin}


class Turns:
    """One thread only. A new one knows of nothing that was given before."""

    def __init__(self) -> None:
        self._tenants = _Line()
        self._jobs: dict[str, _Line] = {}
        """by tenant"""

    def keep(self, claimants: Iterable[Claimant]) -> None:
        """These are there; jobs that are not have ended."""
        present: dict[str, set[str]] = {}
        for each in claimants:
            present.setdefault(each.tenant, set()).add(each.job)
        self._jobs = {tenant: line for tenant, line in self._jobs.items() if tenant in present}
        for tenant, line in self._jobs.items():
            line.ends = {job: end for job, end in line.ends.items() if job in present[tenant]}

    def place(self, claimant: Claimant) -> tuple[float, ...]:
        """Who has the smallest is next."""
        begins = self._tenants.begin(claimant.tenant), self._line(claimant).begin(claimant.job)
        return *begins, -claimant.weight, claimant.since

    def is_behind(self, claimant: Claimant, other: Claimant) -> bool:
        """Whether it has been given less than the other."""
        if claimant.tenant != other.tenant:
            return self._tenants.begin(claimant.tenant) < self._tenants.begin(other.tenant)
        line = self._line(claimant)
        return line.begin(claimant.job) < line.begin(other.job)

    def charge(self, claimant: Claimant, measurements: int, *, in_turn: bool) -> None:
        """It is given these; `in_turn`: because it was next."""
        cost = measurements / claimant.weight
        self._tenants.charge(claimant.tenant, cost, in_turn=in_turn)
        self._line(claimant).charge(claimant.job, cost, in_turn=in_turn)

    def _line(self, claimant: Claimant) -> _Line:
        return self._jobs.setdefault(claimant.tenant, _Line())
