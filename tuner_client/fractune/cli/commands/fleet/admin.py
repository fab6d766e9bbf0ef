"""`fractune admin ...`: tokens, tenants, backups and Redis users of a server, managed on its machine while it runs."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.group import Group
from fractune.cli.options import database_address
from fractune.local.embedded_redis import ACL_FILE, write_redis_users
from fractune.local.programs import server_admin, server_backup
from fractune.local.state import default_state_dir
from fractune.text.output_files import check_free, check_writable
from fractune.text.rendering import Column, Table
from fractune.text.text import parse_bytes, parse_lifetime_s
from fractune_core.access import Quotas, Reach, Scope
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.fleet.redis_users import USERS
from fractune_core.jobs import Priority
from fractune_core.names import DEFAULT_TENANT

token_app = typer.Typer(help="Tokens: create, list, revoke.", rich_markup_mode=None, cls=Group)

_USED = ("open jobs", "trials in 24 h", "stored bytes", "share-seconds in 24 h")
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


@token_app.command("create")
def create_token(
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


@token_app.command("list")
def list_tokens(of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """List tokens, oldest first, with the used part of their quotas."""
    columns = (
        *(Column("token"), Column("name", wraps_at=12), Column("tenant"), Column("scope"), Column("state")),
        *(Column("expires (UTC)", dispensable=1), Column("priority", dispensable=2)),
        *(Column(each, dispensable=3) for each in _USED),
    )
    _print_rows(of_server.admin().list_tokens(), columns, _token_cells, as_json=as_json)


def _print_rows(
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


@token_app.command()
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


def _token_cells(token: dict[str, Any]) -> tuple[str, ...]:
    end = token["expires_at"]
    expires = "never" if end is None else f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M}"
    shown = (token[each] for each in ("token", "name", "tenant", "scope", "state"))
    return *shown, expires, token["max_priority"], *_used_cells(token)


def _used_cells(token: dict[str, Any]) -> list[str]:
    """What a token or a tenant uses, in the order of _USED."""
    used, quotas = token["used"], token["quotas"]
    return [f"{used[name]}" if quotas[name] is None else f"{used[name]} of {quotas[name]}" for name in quotas]


def _new_file(path: Path) -> int:
    """A new file that only this user can read. Raises StateUnusable."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StateUnusable(f"--out {path}: {error.strerror}; name a new file in a folder that exists") from error


tenant_app = typer.Typer(help="Tenants: create, list, set, remove.", rich_markup_mode=None, cls=Group)

_MOST = (1 << 63) - 1
_NO_LIMIT = "none"

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: lower-case letters, digits and '-'.")]


@dataclass(frozen=True)
class TenantFields:
    """The options of what is stored of a tenant."""

    jobs: Annotated[str | None, typer.Option("--jobs", metavar="N", help="Limit of open jobs; 'none' lifts it.")] = None
    trials_a_day: Annotated[
        str | None,
        typer.Option("--trials-a-day", metavar="N", help="Limit of trials of jobs created within 24 hours; or 'none'."),
    ] = None
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="50GiB", help="Limit of the size of its models and bundles; or 'none'."),
    ] = None
    share_seconds_a_day: Annotated[
        str | None,
        typer.Option(
            "--share-seconds-a-day", metavar="N", help="Limit of seconds on shares within 24 hours; or 'none'."
        ),
    ] = None
    weight: Annotated[
        int | None, typer.Option("--weight", min=1, max=1000, help="Its part of the fleet beside other tenants' (1).")
    ] = None
    shares: Annotated[
        bool | None,
        typer.Option(
            "--share-searches/--no-share-searches",
            help="Give and take schedules and times of equal operators, with the other tenants that do (no).",
        ),
    ] = None

    def quotas(self) -> dict[str, int | None]:
        """The quotas that are given, by their names in Quotas. Raises BadRequest."""
        limits = {
            "open_jobs": ("--jobs", self.jobs),
            "trials_a_day": ("--trials-a-day", self.trials_a_day),
            "share_seconds_a_day": ("--share-seconds-a-day", self.share_seconds_a_day),
        }
        found = {name: _limit(option, text) for name, (option, text) in limits.items() if text is not None}
        if self.size is not None:
            found["stored_bytes"] = None if self.size == _NO_LIMIT else parse_bytes("--bytes", self.size)
        return found

    def others(self) -> dict[str, Any]:
        given = {"weight": self.weight, "shares_searches": self.shares}
        return {name: value for name, value in given.items() if value is not None}


@tenant_app.command("create")
def create_tenant(name: _Name, given: TenantFields, of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """Create a tenant. Its tokens come from `fractune admin token create --tenant`."""
    of_server.admin().create_tenant(name, Quotas(**given.quotas()), **given.others())
    _print_tenant(name, "is created", as_json=as_json)


@tenant_app.command("list")
def list_tenants(of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """List tenants by name, with the used part of their quotas."""
    columns = (Column("tenant"), Column("weight"), Column("shares searches"), *map(Column, _USED))
    _print_rows(of_server.admin().list_tenants(), columns, _tenant_cells, as_json=as_json)


@tenant_app.command("set")
def set_tenant(name: _Name, given: TenantFields, of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """Change a tenant: what is not named stays as it is."""
    quotas, others = given.quotas(), given.others()
    if not quotas and not others:
        raise BadRequest("name what to change, such as --jobs 20 or --weight 2")
    of_server.admin().set_tenant(name, quotas, others)
    _print_tenant(name, "is changed", as_json=as_json)


@tenant_app.command("remove")
def remove_tenant(name: _Name, of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """Remove a tenant that has no valid token and has stored nothing."""
    of_server.admin().remove_tenant(name)
    _print_tenant(name, "is removed", as_json=as_json)


def _limit(option: str, text: str) -> int | None:
    if text == _NO_LIMIT:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise BadRequest(f"{option} '{text[:40]}': write a whole number, or {_NO_LIMIT}")
    return int(text)


def _tenant_cells(tenant: dict[str, Any]) -> tuple[str, ...]:
    shares = "yes" if tenant["shares_searches"] else "no"
    return tenant["tenant"], str(tenant["weight"]), shares, *_used_cells(tenant)


def _print_tenant(name: str, what: str, *, as_json: bool) -> None:
    print(json.dumps({"tenant": name}) if as_json else f"tenant {name} {what}")


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    state: options.State = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write log, jobs, models and bundles to a file. The server may be running."""
    check_free(file, force=force)
    check_writable("FILE", file)
    _print_summary("backed up", server_backup().back_up(_folder(state), file), f"to {file}", as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `admin backup` wrote.")],
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Restore a backup into a new state folder. A server or stack started there continues from it."""
    folder = _folder(state)
    _print_summary("restored", server_backup().restore(file, folder), f"to {folder}", as_json=as_json)


def _folder(state: Path | None) -> Path:
    return (state or default_state_dir()).expanduser()


def _print_summary(verb: str, summary: Any, where: str, *, as_json: bool) -> None:
    """`summary`: a fractune_server.admin.BackupSummary."""
    if as_json:
        print(json.dumps(vars(summary)))
        return
    held = f"{summary.records} records, {summary.jobs} jobs, {summary.files} models and bundles"
    print(f"{verb} {held} ({summary.size_bytes / 1e6:.1f} MB) {where}")


def redis_acl(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; created if it does not exist.")],
) -> None:
    """Write users.acl for Redis 7 or Valkey. Each user without a password file there gets one."""
    try:
        write_redis_users(folder)
    except OSError as error:
        raise StateUnusable(f"cannot write the users of Redis to {folder}: {error.strerror}; name another") from error
    typer.echo(f"{folder / ACL_FILE}: start Redis with --aclfile and this file; it holds no password")
    for user in USERS:
        typer.echo(f"{folder / f'{user}.password'}: for --redis redis://{user}@HOST:PORT --redis-password-file")


admin_app = typer.Typer(help="Manage tenants, tokens, backups and Redis users of a fleet.", rich_markup_mode=None)
admin_app.add_typer(token_app, name="token")
admin_app.add_typer(tenant_app, name="tenant")
admin_app.command("redis-acl")(redis_acl)
admin_app.command("backup")(backup)
admin_app.command("restore")(restore)


@admin_app.callback()
def admin() -> None:
    """Manage tenants, tokens, backups and Redis users of a fleet."""
