"""An operator's work on a server's database, whether or not the server runs."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from fractune_core.access import DEFAULT_REACH, Quotas, Reach, Scope, TokenText
from fractune_core.jobs import Priority
from fractune_server.operator_audit import audited
from fractune_server.store.database.database import Database
from fractune_server.store.database.sight import Sight
from fractune_server.store.database.tenants import StoredTenant, TenantStore
from fractune_server.store.quotas import Usage, UsageStore
from fractune_server.store.store import sqlite_url
from fractune_server.store.tokens import TokenStore


class Admin:
    """The database of a server: SQLite in `state_dir`, or the one of the address."""

    def __init__(self, state_dir: Path, database_url: str | None = None) -> None:
        self._url = database_url or sqlite_url(state_dir)
        self._state = state_dir

    def create_token(
        self,
        name: str,
        scope: Scope,
        lifetime_s: float | None,
        quotas: Quotas,
        max_priority: Priority = Priority.NORMAL,
        reach: Reach = DEFAULT_REACH,
    ) -> TokenText:
        """Raises StateUnusable without a database of this version, NotFound for an unknown tenant."""
        expires_at = None if lifetime_s is None else time.time() + lifetime_s
        with self._database() as database, audited(self._state, "token create", reach.tenant, "") as line:
            TenantStore(database).check(reach.tenant)
            made = TokenStore(database).create(name, scope, expires_at, quotas, max_priority, reach)
            line["object"] = made.token_id
            return made

    def list_tokens(self) -> list[dict[str, Any]]:
        """Tokens as plain values without their secrets, oldest first. Raises StateUnusable."""
        with self._database() as database, audited(self._state, "token list", "", ""):
            tokens = TokenStore(database)
            return [
                {
                    "token": each.token_id,
                    "tenant": each.reach.tenant,
                    "all_tenants": each.reach.all_tenants or each.scope is Scope.ADMIN,
                    "name": each.name,
                    "scope": each.scope.value,
                    "created_at": each.created_at,
                    "expires_at": each.expires_at,
                    "revoked_at": each.revoked_at,
                    "state": each.end(time.time()) or "good",
                    "max_priority": each.max_priority.value,
                    "quotas": asdict(each.quotas),
                    "used": _used(tokens.usage(each.token_id, each.reach.tenant)),
                }
                for each in tokens.all()
            ]

    def revoke_token(self, token_id: str) -> bool:
        """False if it was revoked before. Raises NotFound, StateUnusable."""
        with self._database() as database, audited(self._state, "token revoke", "", token_id):
            return TokenStore(database).revoke(token_id)

    def create_tenant(self, name: str, quotas: Quotas, weight: int = 1, *, shares_searches: bool = False) -> None:
        """Raises BadRequest for a name that is taken or wrong, StateUnusable."""
        with self._database() as database, audited(self._state, "tenant create", name, ""):
            TenantStore(database).create(StoredTenant(name, quotas, weight, shares_searches))

    def list_tenants(self) -> list[dict[str, Any]]:
        """Tenants as plain values, with what they use. Raises StateUnusable."""
        with self._database() as database, audited(self._state, "tenant list", "", ""):
            return [
                {
                    "tenant": each.name,
                    "weight": each.weight,
                    "shares_searches": each.shares_searches,
                    "quotas": asdict(each.quotas),
                    "used": _used(UsageStore(database.of(Sight(each.name, each.name))).of_tenant()),
                }
                for each in TenantStore(database).all()
            ]

    def set_tenant(self, name: str, quotas: Mapping[str, int | None], changes: Mapping[str, Any]) -> None:
        """Change these of its quotas, and these of its other fields. Raises NotFound, BadRequest, StateUnusable."""
        with self._database() as database, audited(self._state, "tenant set", name, ""):
            tenants = TenantStore(database)
            tenants.check(name)
            before = tenants.get(name)
            tenants.save(replace(before, quotas=replace(before.quotas, **quotas), **changes))

    def remove_tenant(self, name: str) -> None:
        """Raises NotFound, BadRequest for a tenant that has something, StateUnusable."""
        with self._database() as database, audited(self._state, "tenant remove", name, ""):
            TenantStore(database).remove(name)

    @contextlib.contextmanager
    def _database(self) -> Iterator[Database]:
        """Opens the database without creating or migrating it: a server of another version may be using it."""
        with contextlib.closing(Database(self._url, may_migrate=False)) as database:
            yield database


def _used(usage: Usage) -> dict[str, int]:
    return {field.name: getattr(usage, field.name) for field in fields(Quotas)}
