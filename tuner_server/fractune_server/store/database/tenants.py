"""Tenants: their limits, their weight in the fair queue, whether they share searches, and what they use."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, delete, func, or_, select, update

from fractune_core.access import Quotas
from fractune_core.errors import BadRequest, NotFound, QuotaExceeded
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import DEFAULT_TENANT, check_tenant
from fractune_core.records import MEASURING
from fractune_server.store.database.database import Repository
from fractune_server.store.database.sight import SHARED, Sight, pool_of
from fractune_server.store.database.tables import (
    ENDED,
    bundles,
    jobs,
    models,
    pieces,
    records,
    tenants,
    tokens,
    validation_versions,
)


@dataclass(frozen=True)
class StoredTenant:
    name: str
    quotas: Quotas = field(default_factory=Quotas)
    weight: int = 1
    """of its part of the fleet beside other tenants' parts"""
    shares_searches: bool = False
    """it gives and takes schedules and times of equal operators"""


def tenant_of(connection: Connection, name: str) -> StoredTenant:
    """A tenant that was never created has no limits."""
    row = connection.execute(select(tenants).where(tenants.c.name == name)).mappings().first()
    return StoredTenant(name) if row is None else _from_row(row)


def shares_searches(connection: Connection, name: str) -> bool:
    return bool(connection.scalar(select(tenants.c.shares_searches).where(tenants.c.name == name)))


def seen_pools(connection: Connection, sight: Sight, namespace: str) -> list[str]:
    """The pools that can hold records of the tenants that are seen, for one of their namespaces."""
    if sight.seen is None:
        rows: Any = connection.execute(select(tenants.c.name, tenants.c.shares_searches)).all()
        shares = {DEFAULT_TENANT: False, **dict(rows)}
    else:
        shares = {sight.seen: shares_searches(connection, sight.seen)}
    found = {pool_of(name, namespace, shares_searches=each) for name, each in shares.items()}
    return sorted(found)


class TenantStore(Repository):
    """Any process may call: another process manages tenants while the server runs."""

    def create(self, tenant: StoredTenant) -> None:
        """Raises BadRequest for a name that a tenant has, or cannot have."""
        row = {**_to_row(tenant), "name": check_tenant(tenant.name), "created_at": time.time()}
        with self._database.write() as connection:
            if not self._database.insert_new_returning(connection, tenants, [row], [tenants.c.name]):
                raise BadRequest(f"tenant '{tenant.name}' exists; change it by `fractune admin tenant set`")
            if tenant.shares_searches:
                _move(connection, tenant.name, shares=True)

    def get(self, name: str) -> StoredTenant:
        with self._database.read() as connection:
            return tenant_of(connection, name)

    def check(self, name: str) -> None:
        """Raises NotFound for a tenant that was never created."""
        if name != DEFAULT_TENANT and name not in {each.name for each in self.all()}:
            raise NotFound(f"no tenant '{name}'; create it by `fractune admin tenant create`")

    def all(self) -> list[StoredTenant]:
        """By name."""
        with self._database.read() as connection:
            rows = connection.execute(select(tenants).order_by(tenants.c.name)).mappings().all()
        return list(map(_from_row, rows))

    def weights(self) -> dict[str, int]:
        with self._database.read() as connection:
            found: Any = connection.execute(select(tenants.c.name, tenants.c.weight)).all()
            return dict(found)

    def save(self, tenant: StoredTenant) -> None:
        """Change a tenant. Raises NotFound, and BadRequest for another consent while it has open jobs: their searches
        are under way with the records that they may read.
        """
        with self._database.write() as connection:
            before = connection.scalar(select(tenants.c.shares_searches).where(tenants.c.name == tenant.name))
            if before is None:
                raise NotFound(f"no tenant '{tenant.name}'; create it by `fractune admin tenant create`")
            connection.execute(update(tenants).where(tenants.c.name == tenant.name).values(_to_row(tenant)))
            if before != tenant.shares_searches:
                _move(connection, tenant.name, shares=tenant.shares_searches)

    def remove(self, name: str) -> None:
        """Raises NotFound, and BadRequest for a tenant that still has something."""
        with self._database.write() as connection:
            open_tokens = tokens.c.revoked_at.is_(None)
            held = {
                "valid tokens": select(func.count()).where(tokens.c.tenant == name, open_tokens),
                "jobs": select(func.count()).where(jobs.c.tenant == name),
                "models": select(func.count()).where(models.c.tenant == name),
                "records": select(func.count()).where(records.c.tenant == name),
            }
            counts = {what: connection.scalar(query) for what, query in held.items()}
            kept = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            if kept:
                raise BadRequest(f"tenant '{name}' has {kept}; revoke its tokens to lock it out, and keep it")
            if not connection.execute(delete(tenants).where(tenants.c.name == name)).rowcount:
                raise NotFound(f"no tenant '{name}'; `fractune admin tenant list` lists them")


def _move(connection: Connection, name: str, *, shares: bool) -> None:
    """Give the tenant's records into the shared pool, or take them out of it."""
    open_jobs = select(func.count()).select_from(jobs).where(jobs.c.tenant == name, jobs.c.state.not_in(ENDED))
    if count := connection.scalar(open_jobs):
        raise BadRequest(f"tenant '{name}' has {count} open jobs; change --share-searches when they have ended")
    alone = pool_of(name, "", shares_searches=False)
    old, new = (alone, SHARED) if shares else (SHARED, alone)
    moved = (records.c.tenant == name) & (records.c.namespace == old)
    # Validations that another process has in its memory are read again.
    changed = validation_versions.c.workload_hash.in_(select(records.c.workload_hash).where(moved))
    one_more = {"version": validation_versions.c.version + 1}
    connection.execute(update(validation_versions).where(changed).values(one_more))
    connection.execute(update(records).where(moved).values(namespace=new))
    connection.execute(update(jobs).where(jobs.c.tenant == name).values(shares_searches=shares))


def _to_row(tenant: StoredTenant) -> dict[str, object]:
    return {**asdict(tenant.quotas), "weight": tenant.weight, "shares_searches": tenant.shares_searches}


def _from_row(row: RowMapping) -> StoredTenant:
    return StoredTenant(row["name"], quotas_of(row), row["weight"], row["shares_searches"])


def quotas_of(row: RowMapping) -> Quotas:
    """Those of a tenant or of a token."""
    return Quotas(*(row[field.name] for field in fields(Quotas)))


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
    """When this much of the spending is older than a day."""
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
