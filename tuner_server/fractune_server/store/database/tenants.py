"""Tenants: their limits, their weight in the fair queue, and whether they share searches."""

import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, select, update

from fractune_core.access import Quotas
from fractune_core.errors import BadRequest, NotFound
from fractune_core.names import DEFAULT_TENANT, check_tenant
from fractune_server.store.database.database import Repository
from fractune_server.store.database.sight import SHARED, Sight, pool_of
from fractune_server.store.database.tables import ENDED, jobs, models, records, tenants, tokens, validation_versions


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
