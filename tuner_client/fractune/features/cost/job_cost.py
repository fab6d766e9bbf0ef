"""The use of the fleet by jobs, and its cost at given prices."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fractune.server.job_status import JobStatus, job_status
from fractune.server.rpc import RpcClient
from fractune_core.codec.messages import from_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.spending import MEASURING, Spending

_HOUR_S = 3600.0

DEFAULT_LIMIT = 50


@dataclass(frozen=True)
class Prices:
    """Prices of an hour of the fleet, in any currency."""

    currency: str = ""
    """a label"""
    cpu_hour: float = 0.0
    """of one core that searches, builds and compiles"""
    share_hour: Mapping[str, float] = field(default_factory=dict)
    """of measuring at a share, by share as text"""

    def of(self, share_s: Mapping[str, float], cpu_s: float) -> float:
        """Raises BadRequest for a share that has no price."""
        unpriced = sorted(share_s.keys() - self.share_hour.keys())
        if unpriced:
            raise BadRequest(
                f"prices: share_hour lacks {', '.join(unpriced)}; write the price of an hour, 0 for nothing"
            )
        shares = sum(secs * self.share_hour[share] for share, secs in share_s.items())
        return (shares + cpu_s * self.cpu_hour) / _HOUR_S


@dataclass(frozen=True)
class JobCost:
    """The use of the fleet by a job, from the server's ledger. A shared round counts for the job that requested it."""

    job: JobStatus
    """without its operators"""
    spent: tuple[Spending, ...]
    token: str = ""
    """the job's token, if requested; empty = none"""

    @property
    def share_s(self) -> dict[str, float]:
        """Seconds of measuring, by share."""
        return share_s(self.spent)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of other work: reading the model, searches, builds, the bundle."""
        return cpu_s(self.spent)

    @property
    def gained(self) -> float | None:
        """Saved part of the untuned latency, by the geometric mean over the shares: 0.2 = 20 %.

        None until the job is done.
        """
        ratios = [math.log(each.tuned_s / each.untuned_s) for each in self.job.results if each.untuned_s > 0]
        return -math.expm1(sum(ratios) / len(ratios)) if ratios else None

    def money(self, prices: Prices) -> float:
        """Raises BadRequest for a share that has no price."""
        return prices.of(self.share_s, self.cpu_s)

    def per_percent(self, prices: Prices) -> float | None:
        """Cost of each percent of saved latency; None if no saving is known."""
        gained = self.gained
        return self.money(prices) / (gained * 100) if gained is not None and gained > 0 else None


def job_costs(
    client: RpcClient, job: str | None = None, *, since: float | None, tokens: bool, limit: int
) -> list[JobCost]:
    """The costs of the job, else of the newest `limit` jobs with costs. Raises NotFound, ScopeMissing."""
    return list(map(job_cost, client.costs(job or "", since=since, tokens=tokens, limit=limit)))


def job_cost(cost: pb.JobCost) -> JobCost:
    return from_proto(JobCost, cost, job=job_status(cost.job))


def share_s(spent: Iterable[Spending]) -> dict[str, float]:
    secs: defaultdict[str, float] = defaultdict(float)
    for each in spent:
        if each.task in MEASURING:
            secs[each.share] += each.worked_s
    return dict(sorted(secs.items()))


def cpu_s(spent: Iterable[Spending]) -> float:
    return sum(each.cpu_s for each in spent if each.task not in MEASURING)


def by_token(costs: Iterable[JobCost]) -> dict[str, list[JobCost]]:
    """The jobs of each token, ordered by id; jobs without a token have the empty text."""
    found: defaultdict[str, list[JobCost]] = defaultdict(list)
    for each in costs:
        found[each.token].append(each)
    return dict(sorted(found.items()))
