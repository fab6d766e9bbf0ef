"""Tokens and their usage, which is counted from their jobs, models and bundles."""

import hmac
import time
from dataclasses import asdict, dataclass

from sqlalchemy import RowMapping, insert, select, update

from fractune_core.access import DEFAULT_REACH, Quotas, Reach, Scope, TokenText
from fractune_core.errors import NotFound
from fractune_core.jobs import Priority
from fractune_core.names import DEFAULT_TENANT
from fractune_server.store.database.database import Repository
from fractune_server.store.database.tables import bundles, tokens
from fractune_server.store.database.tenants import Owner, Usage, check_bundle, quotas_of, usage_of

_NO_SECRET = "0" * 64
"""no known secret has this SHA-256"""


@dataclass(frozen=True)
class StoredToken:
    """Times of day in seconds since 1970."""

    token_id: str
    name: str
    scope: Scope
    created_at: float
    expires_at: float | None
    """None = never"""
    revoked_at: float | None
    quotas: Quotas
    max_priority: Priority
    reach: Reach = DEFAULT_REACH

    def end(self, now: float) -> str:
        """Why the token is no longer valid: `revoked` or `expired`; empty while it is valid."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else ""


class TokenStore(Repository):
    """Any process may call too: another process revokes tokens while the server runs."""

    def create(
        self,
        name: str,
        scope: Scope,
        expires_at: float | None,
        quotas: Quotas,
        max_priority: Priority = Priority.NORMAL,
        reach: Reach = DEFAULT_REACH,
    ) -> TokenText:
        """A new token of a tenant that exists. Its text is only in the result."""
        made = TokenText.new()
        row = {
            "id": made.token_id,
            "secret_sha256": made.secret_sha256,
            "tenant": reach.tenant,
            "name": name,
            "scope": scope.value,
            "created_at": time.time(),
            "expires_at": expires_at,
            "max_priority": max_priority.value,
            "all_tenants": reach.all_tenants,
            **asdict(quotas),
        }
        with self._database.write() as connection:
            connection.execute(insert(tokens).values(row))
        return made

    def find(self, text: TokenText) -> StoredToken | None:
        """The token with this id and secret, valid or not."""
        with self._database.read() as connection:
            row = connection.execute(select(tokens).where(tokens.c.id == text.token_id)).mappings().first()
        # The id is public. The comparison takes as long for a wrong id as for a wrong secret.
        kept = _NO_SECRET if row is None else row["secret_sha256"]
        is_right = hmac.compare_digest(kept, text.secret_sha256)
        return _from_row(row) if row is not None and is_right else None

    def all(self) -> list[StoredToken]:
        """Oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.created_at)).mappings().all()
        return list(map(_from_row, rows))

    def revoke(self, token_id: str) -> bool:
        """Revoke the token; False if it was revoked before. Raises NotFound."""
        with self._database.write() as connection:
            is_open = (tokens.c.id == token_id) & tokens.c.revoked_at.is_(None)
            changed = connection.execute(update(tokens).where(is_open).values(revoked_at=time.time())).rowcount
            known = changed or connection.execute(select(tokens.c.id).where(tokens.c.id == token_id)).first()
        if not known:
            raise NotFound(f"no token '{token_id}'; `fractune admin token list` lists them")
        return bool(changed)

    def usage(self, token_id: str, tenant: str = DEFAULT_TENANT) -> Usage:
        with self._database.read() as connection:
            return usage_of(connection, Owner(tenant, token_id))

    def add_bundle(self, token_id: str, bundle: str, size_bytes: int, tenant: str = DEFAULT_TENANT) -> None:
        """Count a bundle that is to be stored, once. Raises QuotaExceeded if it goes beyond the bytes of the token or
        of the tenant.
        """
        with self._database.write() as connection:
            if connection.scalar(select(bundles.c.id).where(bundles.c.id == bundle)) is None:
                check_bundle(connection, token_id, tenant, size_bytes)
                row = {"id": bundle, "size_bytes": size_bytes, "token": token_id, "tenant": tenant}
                connection.execute(insert(bundles).values(row))


def _from_row(row: RowMapping) -> StoredToken:
    return StoredToken(
        token_id=row["id"],
        name=row["name"],
        scope=Scope(row["scope"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        quotas=quotas_of(row),
        max_priority=Priority(row["max_priority"]),
        reach=Reach(row["tenant"], row["all_tenants"]),
    )
