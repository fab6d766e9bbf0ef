"""The use of the fleet by jobs, queried from a server, with the caller's prices."""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fractune.server.job_status import JobStatus, job_status
from fractune.server.rpc import RpcClient
from fractune.sessions.session import session
from fractune.text.rendering import Column, Table
from fractune.text.text import percent_text
from fractune.text.toml_table import TableReader, read_toml
from fractune_core.codec.messages import from_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import MEASURING, Spending
from fractune_core.shares import Share

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


_SHARE_SECONDS = Column("share-seconds", numbers=True, wraps_at=16)
_CPU_SECONDS = Column("CPU seconds", numbers=True, dispensable=3)
_NOTE = "measuring in share-seconds; searching, building and compiling in CPU seconds"


def cost_table(costs: Sequence[JobCost], prices: Prices | None) -> Table:
    """A row for each job."""
    whose = any(each.token for each in costs)
    token = (Column("token"),) if whose else ()
    columns = (
        *(Column("job"), Column("model", dispensable=4, wraps_at=12), *token, Column("state", dispensable=5)),
        *(_SHARE_SECONDS, _CPU_SECONDS, Column("latency saved", numbers=True, dispensable=2)),
        *(Column(each, numbers=True, dispensable=at) for at, each in enumerate(_money_headings(prices))),
    )
    rows = [job_cost_json(each, prices) for each in costs]
    cells = [
        (
            *(each.job.name, each.job.model_name, *((each.token,) if whose else ()), each.job.state.value),
            *(_shares_text(row["share_s"]), f"{row['cpu_s']:.1f}", percent_text(row["gained"])),
            *(() if prices is None else (_money_text(row["cost"]), _money_text(row["cost_per_percent"]))),
        )
        for each, row in zip(costs, rows, strict=True)
    ]
    return Table(columns, tuple(cells), tuple(rows), notes=(_NOTE,))


def token_table(costs: Sequence[JobCost], prices: Prices | None) -> Table:
    """A row for each token."""
    rows = [token_cost_json(token, jobs, prices) for token, jobs in by_token(costs).items()]
    money = () if prices is None else _money_headings(prices)[:1]
    cells = [
        (
            *(row["token"] or "-", str(row["jobs"]), _shares_text(row["share_s"]), f"{row['cpu_s']:.1f}"),
            *(() if prices is None else (_money_text(row["cost"]),)),
        )
        for row in rows
    ]
    costs_columns = (Column("jobs", numbers=True), _SHARE_SECONDS, _CPU_SECONDS)
    columns = (Column("token"), *costs_columns, *(Column(each, numbers=True) for each in money))
    return Table(columns, tuple(cells), tuple(rows), notes=(_NOTE,))


def job_cost_json(each: JobCost, prices: Prices | None) -> dict[str, Any]:
    """Seconds, `gained` as a part; with prices `cost` and `cost_per_percent` in `currency`."""
    money = (
        {} if prices is None else {**_money(each.money(prices), prices), "cost_per_percent": each.per_percent(prices)}
    )
    return {
        "job": each.job.name,
        "model": each.job.model_name,
        "state": each.job.state.value,
        "token": each.token,
        "share_s": each.share_s,
        "cpu_s": each.cpu_s,
        "gained": each.gained,
        "spent": [asdict(spending) for spending in each.spent],
        **money,
    }


def token_cost_json(token: str, jobs: Sequence[JobCost], prices: Prices | None) -> dict[str, Any]:
    spent = [spending for job in jobs for spending in job.spent]
    shares, cpu = share_s(spent), cpu_s(spent)
    money = {} if prices is None else _money(prices.of(shares, cpu), prices)
    return {"token": token, "jobs": len(jobs), "share_s": shares, "cpu_s": cpu, **money}


def _money(cost: float, prices: Prices) -> dict[str, Any]:
    return {"cost": cost, "currency": prices.currency}


def _money_headings(prices: Prices | None) -> tuple[str, ...]:
    if prices is None:
        return ()
    cost = f"cost {prices.currency}".rstrip()
    return cost, "per % saved"


def _money_text(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:.4f}" if cost < 1 else f"{cost:.2f}"


def _shares_text(share_s: dict[str, float]) -> str:
    return ", ".join(f"{share}={secs:.1f}" for share, secs in share_s.items()) or "-"


@dataclass(frozen=True)
class CostResult:
    """The use of the fleet by jobs, newest first."""

    jobs: tuple[JobCost, ...]
    prices: Prices | None = None
    """None = seconds alone"""

    def __repr__(self) -> str:
        count = f"{len(self.jobs)} job{'' if len(self.jobs) == 1 else 's'}"
        return f"CostResult({count}{', with prices' if self.prices else ''})"

    @property
    def table(self) -> Table:
        """A row for each job. Raises BadRequest for a share that has no price."""
        return cost_table(self.jobs, self.prices)

    @property
    def by_token(self) -> Table:
        """A row for each token. Raises BadRequest for a share that has no price."""
        return token_table(self.jobs, self.prices)


def cost(
    job: str | None = None,
    *,
    since: float | None = None,
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    tokens: bool = False,
    limit: int = DEFAULT_LIMIT,
    server: str | None = None,
    state: str | os.PathLike[str] | None = None,
) -> CostResult:
    """The use of the fleet by `job`, else by the newest `limit` jobs with costs.

    `since` counts only work that ended then or later, in seconds since 1970. `prices` is a TOML file or a mapping with
    its content; prices stay on this machine. With `tokens` each job has the token of its owner, which needs a token of
    the scope `admin`. `server` and `state` are those of `tune`.

    Raises BadRequest, NotFound, ScopeMissing, ServerUnreachable.
    """
    priced = None if prices is None else read_prices(prices)
    with session(RpcClient, state, server) as client:
        found = job_costs(client, job, since=since, tokens=tokens, limit=limit)
    return CostResult(tuple(found), priced)


def read_prices(source: str | os.PathLike[str] | Mapping[str, Any]) -> Prices:
    """Prices from a TOML file, or from a mapping with its content. Raises BadRequest."""
    content = source if isinstance(source, Mapping) else read_toml(Path(source), "the prices")
    whole = TableReader("prices" if content is source else str(source), content)
    whole.check_keys("currency", "cpu_hour", "share_hour")
    shares = whole.table("share_hour")
    names = content.get("share_hour", {})
    return Prices(
        currency=whole.text("currency"),
        cpu_hour=_price(whole, "cpu_hour"),
        share_hour={str(Share.parse(share)): _price(shares, share) for share in names},
    )


def _price(table: TableReader, key: str) -> float:
    if not table.has(key):
        raise BadRequest(f"{table.where}: '{key}' is missing; write the price of an hour, 0 for nothing")
    price = table.number(key, 0.0)
    if not (math.isfinite(price) and price >= 0):
        raise BadRequest(f"{table.where}: '{key}' is {price}; write a price of 0 or more")
    return price
