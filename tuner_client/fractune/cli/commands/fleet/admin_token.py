"""`fractune admin token`: tokens for callers of a server, managed on its own machine, also while it runs."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.environment import database_address
from fractune.cli.group import Group
from fractune.local.programs import server_admin
from fractune.local.state import default_state_dir
from fractune.text.rendering import Column, Table
from fractune.text.text import parse_bytes, parse_lifetime_s
from fractune_core.access.tokens import Quotas, Reach, Scope
from fractune_core.errors import StateUnusable
from fractune_core.jobs import Priority
from fractune_core.names import DEFAULT_TENANT

app = typer.Typer(help="Tokens: create, list, revoke.", rich_markup_mode=None, cls=Group)

USED = ("open jobs", "trials in 24 h", "stored bytes", "share-seconds in 24 h")
"""titles of columns, in the order of Quotas"""


@dataclass(frozen=True)
class ServerDatabase:
    """Options that find the database of a server on the server's machine."""

    state: Annotated[
        Path | None, typer.Option("--state", help="The server's state folder (default: user data folder).")
    ] = None
    database: options.Database = None
    database_password_file: options.DatabasePasswordFile = None

    def admin(self) -> Any:
        """A fractune_server.admin.Admin. A given state folder takes precedence over the environment. Raises
        BadRequest, or FractuneError without the libraries of the server.
        """
        address = database_address(self.database, self.database_password_file, heed_environment=self.state is None)
        return server_admin(self.state or default_state_dir(), address)


@dataclass(frozen=True)
class Rights:
    """Options that limit a new token."""

    expires: Annotated[str | None, typer.Option("--expires", metavar="30d", help="Lifetime (default: none).")] = None
    open_jobs: Annotated[int | None, typer.Option("--open-jobs", min=0, help="Limit of open jobs.")] = None
    trials_a_day: Annotated[
        int | None, typer.Option("--trials-a-day", min=0, help="Limit of trials of jobs created within 24 hours.")
    ] = None
    stored_bytes: Annotated[
        str | None,
        typer.Option("--stored-bytes", metavar="10GiB", help="Limit of the size of all its models and bundles."),
    ] = None
    share_seconds_a_day: Annotated[
        int | None, typer.Option("--share-seconds-a-day", min=0, help="Limit of seconds on shares within 24 hours.")
    ] = None
    tenant: Annotated[
        str, typer.Option("--tenant", help="Its tenant: it sees what this tenant has. The scope admin sees all.")
    ] = DEFAULT_TENANT
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Let it see what any tenant has, such as for monitoring.")
    ] = False
    max_priority: Annotated[Priority, typer.Option("--max-priority", help="Highest priority of its jobs.")] = (
        Priority.NORMAL
    )

    def parsed(self) -> tuple[float | None, Quotas, Priority, Reach]:
        """Lifetime in seconds, quotas, priority and reach. Raises BadRequest."""
        lifetime_s = None if self.expires is None else parse_lifetime_s("--expires", self.expires)
        stored_bytes = None if self.stored_bytes is None else parse_bytes("--stored-bytes", self.stored_bytes)
        quotas = Quotas(self.open_jobs, self.trials_a_day, stored_bytes, self.share_seconds_a_day)
        return lifetime_s, quotas, self.max_priority, Reach(self.tenant, self.all_tenants)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A label for its owner, shown by `fractune admin token list`.")],
    scope: Annotated[Scope, typer.Option("--scope", help="Its rights; each scope includes those before it.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="New file for the token, readable by this user only.")],
    rights: Rights,
    of_server: ServerDatabase,
    as_json: options.Json = False,
) -> None:
    """Create a token and write it to a file. It is stored nowhere else and cannot be shown again."""
    parsed, admin = rights.parsed(), of_server.admin()
    # The file first: a token without an owner must not be left in the database.
    descriptor = _new_file(out)
    try:
        made = admin.create_token(name, scope, *parsed)
        with os.fdopen(descriptor, "w") as file:
            file.write(made.text + "\n")
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    if as_json:
        print(json.dumps({"token": made.token_id, "tenant": rights.tenant, "path": str(out)}))
    else:
        print(f"token {made.token_id} ({name}, {scope.value}, tenant {rights.tenant}) is in {out}")


@app.command("list")
def list_(of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """List tokens, oldest first, with the used part of their quotas."""
    columns = (
        *(Column("token"), Column("name", wraps_at=12), Column("tenant"), Column("scope"), Column("state")),
        *(Column("expires (UTC)", dispensable=1), Column("priority", dispensable=2)),
        *(Column(each, dispensable=3) for each in USED),
    )
    print_rows(of_server.admin().list_tokens(), columns, _cells, as_json=as_json)


def print_rows(
    found: Sequence[dict[str, Any]],
    columns: tuple[Column, ...],
    cells: Callable[[dict[str, Any]], tuple[str, ...]],
    *,
    as_json: bool,
) -> None:
    """A line of JSON for each, or a table."""
    if as_json:
        for each in found:
            print(json.dumps(each))
    else:
        Table(columns, tuple(map(cells, found))).print()


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id: 12 hex digits.")],
    of_server: ServerDatabase,
    as_json: options.Json = False,
) -> None:
    """Revoke a token. Its next call is refused, and its jobs continue."""
    changed = of_server.admin().revoke_token(token)
    if as_json:
        print(json.dumps({"token": token, "revoked": True, "changed": changed}))
    else:
        print(f"token {token} is revoked" if changed else f"token {token} was revoked already")


def _cells(token: dict[str, Any]) -> tuple[str, ...]:
    end = token["expires_at"]
    expires = "never" if end is None else f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M}"
    shown = (token[each] for each in ("token", "name", "tenant", "scope", "state"))
    return *shown, expires, token["max_priority"], *used_cells(token)


def used_cells(token: dict[str, Any]) -> list[str]:
    """What a token or a tenant uses, in the order of USED."""
    used, quotas = token["used"], token["quotas"]
    return [f"{used[name]}" if quotas[name] is None else f"{used[name]} of {quotas[name]}" for name in quotas]


def _new_file(path: Path) -> int:
    """A new file that only this user can read. Raises StateUnusable."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StateUnusable(f"--out {path}: {error.strerror}; name a new file in a folder that exists") from error
