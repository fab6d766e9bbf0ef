"""Which job gets the next round.

Tenants share the fleet by their weights, the tokens of a tenant share its part evenly, and the jobs of a token share by
their priorities.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) at each of these levels. Handing out measurements costs
their number. Each tenant, token and job has a virtual time that grows by cost over weight, and the smallest one is
next. A job that wanted nothing for a while, or could get nothing, resumes at the present virtual time: it has saved
nothing up, and a new job owes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fractune_core.names import DEFAULT_TENANT


@dataclass(frozen=True)
class Claimant:
    """A job in the fair queue."""

    job: str
    token: str
    """jobs of one token share what the token gets"""
    weight: int = 1
    """of the job, and of its token while the token works for this job"""
    since: float = 0.0
    """when the job was made; among equals the older one is next"""
    tenant: str = DEFAULT_TENANT
    """tokens of one tenant share what the tenant gets, whatever the weights of their jobs"""

    @property
    def path(self) -> tuple[tuple[str, ...], ...]:
        """The tenant, its token and the token's job, each named with those above it."""
        return (self.tenant,), (self.tenant, self.token), (self.tenant, self.token, self.job)


@dataclass
class _VirtualTimes:
    """Virtual times, in measurements over weight, of tenants, of a tenant's tokens, or of a token's jobs."""

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
        self._times: dict[tuple[str, ...], _VirtualTimes] = {(): _VirtualTimes()}
        """by the place above: () of the tenants, a tenant's of its tokens, a token's of its jobs"""
        self._weights: dict[str, int] = {}
        """of the tenants; 1 for others"""

    def set_weights(self, weights: dict[str, int]) -> None:
        """The weights of the tenants, from now on."""
        self._weights = weights

    def keep(self, claimants: Iterable[Claimant]) -> None:
        """Forget all jobs but these: the others have ended."""
        present = {place for each in claimants for place in each.path}
        tokens = {place for place in self._times if len(place) == len(("tenant", "token"))}
        for token in tokens - present:
            del self._times[token]
        for token in tokens & present:
            ends = self._times[token].ends
            self._times[token].ends = {job: end for job, end in ends.items() if (*token, job) in present}

    def sort_key(self, claimant: Claimant) -> tuple[float, ...]:
        """The claimant with the smallest key is next."""
        return *self._begins(claimant), -claimant.weight, claimant.since

    def is_behind(self, claimant: Claimant, other: Claimant) -> bool:
        """Whether the claimant has been given less than the other one, at the level where they part."""
        levels = zip(claimant.path, self._begins(claimant), other.path, self._begins(other), strict=True)
        return next((mine < theirs for one, mine, two, theirs in levels if one != two), False)

    def charge(self, claimant: Claimant, measurements: int, *, scheduled: bool) -> None:
        """The claimant gets these measurements; `scheduled`: because it was next."""
        weights = (self._weights.get(claimant.tenant, 1), claimant.weight, claimant.weight)
        for place, weight in zip(claimant.path, weights, strict=True):
            self._above(place).charge(place[-1], measurements / weight, scheduled=scheduled)

    def _begins(self, claimant: Claimant) -> list[float]:
        return [self._above(place).begin(place[-1]) for place in claimant.path]

    def _above(self, place: tuple[str, ...]) -> _VirtualTimes:
        return self._times.setdefault(place[:-1], _VirtualTimes())
