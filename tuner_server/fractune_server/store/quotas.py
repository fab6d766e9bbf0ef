"""What tokens and tenants use, and whether that leaves room for more."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, Table, func, or_, select

from fractune_core.access import Quotas
from fractune_core.errors import QuotaExceeded
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import DEFAULT_TENANT
from fractune_core.records import MEASURING
from fractune_server.store.database.database import Repository
from fractune_server.store.database.tables import ENDED, bundles, jobs, models, pieces, tokens
from fractune_server.store.database.tenants import tenant_of

_DAY_S = 24 * 3600.0


@dataclass(frozen=True)
class Owner:
    """A tenant, or one of its tokens."""

    tenant: str = DEFAULT_TENANT
    token: str | None = None
    """None = all of the tenant's; empty = its callers without a token"""

    def __str__(self) -> str:
        return f"tenant {self.tenant}" if self.token is None else f"token {self.token}"

    def conditions(self, table: Table) -> list[ColumnElement[bool]]:
        """Of the rows of `table` that it owns."""
        return [table.c.tenant == self.tenant, *([] if self.token is None else [table.c.token == self.token])]


@dataclass(frozen=True)
class Usage:
    """Current usage, in the units of `fractune_core.access.Quotas`."""

    open_jobs: int
    trials_a_day: int
    stored_bytes: int
    share_seconds_a_day: int = 0
    spent: Sequence[tuple[float, int]] = field(default=(), compare=False, repr=False)
    """of the trials: when each job was created, and how many are its"""


def usage_of(connection: Connection, owner: Owner) -> Usage:
    since = time.time() - _DAY_S
    query = select(jobs.c.state, jobs.c.created_at, jobs.c.spec, jobs.c.progress).where(
        *owner.conditions(jobs), or_(jobs.c.created_at > since, jobs.c.state.not_in(ENDED))
    )
    open_jobs, spent = 0, []
    for state, created_at, spec, progress in connection.execute(query):
        is_open = JobState(state).open
        open_jobs += is_open
        if created_at > since:
            requested = trials_asked(JobSpec.from_json(spec)) if is_open else 0
            spent.append((created_at, max(requested, int(progress["done"]))))
    share_s = sum(secs for _, secs in _measured(connection, owner, since))
    stored = stored_bytes(connection, owner)
    return Usage(open_jobs, sum(trials for _, trials in spent), stored, round(share_s), spent)


def _measured(connection: Connection, owner: Owner, since: float) -> list[tuple[float, float]]:
    """When measurements for the owner ended, and the seconds that they took."""
    query = (
        select(pieces.c.ended_at, pieces.c.worked_s)
        .join(jobs, jobs.c.id == pieces.c.job)
        .where(*owner.conditions(jobs), pieces.c.task.in_(MEASURING), pieces.c.ended_at > since)
    )
    return [(ended_at, worked_s) for ended_at, worked_s in connection.execute(query)]


def stored_bytes(connection: Connection, owner: Owner) -> int:
    """Of the owner's models and bundles."""
    sums = (
        select(func.coalesce(func.sum(kind.c.size_bytes), 0)).where(*owner.conditions(kind))
        for kind in (models, bundles)
    )
    return sum(int(connection.scalar(each) or 0) for each in sums)


def trials_asked(spec: JobSpec) -> int:
    """Trials that the job may make. Beyond them every new operator gets at least one."""
    return spec.extra_trials or spec.trials


def check_job(connection: Connection, owner: Owner, quotas: Quotas, spec: JobSpec) -> None:
    """Raises QuotaExceeded if the owner may not have this job. Call it in the transaction that adds the job."""
    if quotas == Quotas():
        return
    used = usage_of(connection, owner)
    if quotas.open_jobs is not None and used.open_jobs >= quotas.open_jobs:
        raise QuotaExceeded(
            f"{owner} has {used.open_jobs} open jobs of at most {quotas.open_jobs}; wait until one ends, or cancel one"
        )
    if quotas.stored_bytes is not None and used.stored_bytes >= quotas.stored_bytes:
        raise QuotaExceeded(
            f"{owner} has stored {used.stored_bytes} of {quotas.stored_bytes} bytes, so no bundle has room; "
            "they stay until the server's operator grants more"
        )
    most_s = quotas.share_seconds_a_day
    if most_s is not None and used.share_seconds_a_day >= most_s:
        measured = _measured(connection, owner, time.time() - _DAY_S)
        raise QuotaExceeded(
            f"{owner} has used {used.share_seconds_a_day} of {most_s} share-seconds in 24 hours; "
            f"{_freed(measured, used.share_seconds_a_day - most_s + 1)}"
        )
    most = quotas.trials_a_day
    left = None if most is None else max(most - used.trials_a_day, 0)
    # A job that searches nothing needs one trial left, because its measurements are known only at its end.
    needed = max(trials_asked(spec), 1)
    if most is not None and left is not None and needed > left:
        raise QuotaExceeded(
            f"the job asks for {trials_asked(spec)} trials, and {owner} has {left} of {most} in "
            f"24 hours left; ask for fewer, or wait: {_freed(used.spent, used.trials_a_day + needed - most)}"
        )


def _freed(spent: Iterable[tuple[float, float]], lacking: float) -> str:
    """When so much of what was spent is older than a day."""
    for spent_at, amount in sorted(spent):
        lacking -= amount
        if lacking <= 0:
            minutes = max(1, round((spent_at + _DAY_S - time.time()) / 60))
            return f"enough frees up in {minutes // 60} h {minutes % 60} min"
    return "the whole quota is less"


def check_bundle(connection: Connection, token: str, tenant: str, size_bytes: int) -> None:
    """Raises QuotaExceeded if the token or its tenant may not store the bundle. Call it in the transaction that adds
    the bundle.
    """
    of_token = connection.scalar(select(tokens.c.stored_bytes).where(tokens.c.id == token))
    of_tenant = tenant_of(connection, tenant).quotas.stored_bytes
    for owner, quota in ((Owner(tenant, token), of_token), (Owner(tenant), of_tenant)):
        left = None if quota is None else max(int(quota) - stored_bytes(connection, owner), 0)
        if left is not None and size_bytes > left:
            raise QuotaExceeded(
                f"the bundle has {size_bytes} bytes, and {owner} has {left} of {quota} left; "
                "ask the server's operator for more"
            )


class UsageStore(Repository):
    """What the own tenant uses, and its limits."""

    def room(self, token: str, quota: int | None) -> list[tuple[Owner, int, int]]:
        """The token and the tenant, as far as they have a limit of bytes: the bytes that are left, and the limit.

        `quota`: the token's.
        """
        tenant = self._sight.own
        with self._database.read() as connection:
            limits = ((Owner(tenant, token), quota), (Owner(tenant), tenant_of(connection, tenant).quotas.stored_bytes))
            return [
                (owner, limit - stored_bytes(connection, owner), limit) for owner, limit in limits if limit is not None
            ]

    def tokens(self) -> list[str]:
        """Ids of the tenant's tokens, and the empty one of callers without a token."""
        query = select(tokens.c.id).where(tokens.c.tenant == self._sight.own)
        with self._database.read() as connection:
            return ["", *connection.scalars(query)]

    def of_tenant(self) -> Usage:
        with self._database.read() as connection:
            return usage_of(connection, Owner(self._sight.own))

    def limits(self) -> Quotas:
        with self._database.read() as connection:
            return tenant_of(connection, self._sight.own).quotas
