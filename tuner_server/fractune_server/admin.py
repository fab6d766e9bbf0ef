"""An operator's work on a server's database, whether or not the server runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fractune_core.access.tokens import Quotas, Scope, TokenText
from fractune_core.jobs import Priority
from fractune_server.store.database.database import Database
from fractune_server.store.store import sqlite_url
from fractune_server.store.tokens import TokenStore


def create_token(
    state_dir: Path,
    database_url: str | None,
    name: str,
    scope: Scope,
    lifetime_s: float | None,
    quotas: Quotas,
    max_priority: Priority = Priority.NORMAL,
) -> TokenText:
    """Raises StateUnusable without a database of this version."""
    expires_at = None if lifetime_s is None else time.time() + lifetime_s
    with _tokens(state_dir, database_url) as tokens:
        return tokens.create(name, scope, expires_at, quotas, max_priority)


def list_tokens(state_dir: Path, database_url: str | None) -> list[dict[str, Any]]:
    """Tokens as plain values without their secrets, oldest first. Raises StateUnusable."""
    with _tokens(state_dir, database_url) as tokens:
        return [
            {
                "token": each.token_id,
                "name": each.name,
                "scope": each.scope.value,
                "created_at": each.created_at,
                "expires_at": each.expires_at,
                "revoked_at": each.revoked_at,
                "state": each.end(time.time()) or "good",
                "max_priority": each.max_priority.value,
                "quotas": asdict(each.quotas),
                "used": asdict(tokens.usage(each.token_id)),
            }
            for each in tokens.all()
        ]


def revoke_token(state_dir: Path, database_url: str | None, token_id: str) -> bool:
    """False if it was revoked before. Raises NotFound, StateUnusable."""
    with _tokens(state_dir, database_url) as tokens:
        return tokens.revoke(token_id)


@contextlib.contextmanager
def _tokens(state_dir: Path, database_url: str | None) -> Iterator[TokenStore]:
    """Opens the database without creating or migrating it: a server of another version may be using it."""
    with contextlib.closing(Database(database_url or sqlite_url(state_dir), may_migrate=False)) as database:
        yield TokenStore(database)
