"""`fractune admin` works on a server's database itself, on the server's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fractune.local.programs import require, require_driver
from fractune_core.access.tokens import Quotas, Scope, TokenText
from fractune_core.jobs import Priority


def create_token(
    state_dir: Path,
    database_url: str | None,
    name: str,
    scope: Scope,
    lifetime_s: float | None,
    quotas: Quotas,
    max_priority: Priority = Priority.NORMAL,
) -> TokenText:
    """A new token; `lifetime_s` None = for ever. Raises StateUnusable for a database that cannot be used."""
    _require_server(database_url)
    from fractune_server import admin

    return admin.create_token(state_dir, database_url, name, scope, lifetime_s, quotas, max_priority)


def list_tokens(state_dir: Path, database_url: str | None) -> list[dict[str, Any]]:
    """Oldest first, as plain JSON values. Raises StateUnusable."""
    _require_server(database_url)
    from fractune_server import admin

    return admin.list_tokens(state_dir, database_url)


def revoke_token(state_dir: Path, database_url: str | None, token_id: str) -> bool:
    """False when it was revoked before. Raises NotFound, StateUnusable."""
    _require_server(database_url)
    from fractune_server import admin

    return admin.revoke_token(state_dir, database_url, token_id)


def _require_server(database_url: str | None) -> None:
    require("server", "sqlalchemy")
    require_driver(database_url)
