"""The use of the fleet by jobs, queried from a server, with the caller's prices."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.cost.job_cost import DEFAULT_LIMIT, JobCost, Prices, job_costs
from fractune.features.cost.table import cost_table, token_table
from fractune.server.rpc import RpcClient
from fractune.sessions.session import session
from fractune.text.rendering import Table
from fractune.text.toml_table import TableReader, read_toml
from fractune_core.errors import BadRequest
from fractune_core.shares import Share


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
