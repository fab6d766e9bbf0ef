"""`fractune admin ...`: occasional tasks of the operator of a fleet."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.commands.fleet import admin_tenant, admin_token
from fractune.local.embedded_redis import ACL_FILE, write_redis_users
from fractune.local.programs import server_backup
from fractune.local.state import default_state_dir
from fractune.text.output_files import check_free, check_writable
from fractune_core.errors import StateUnusable
from fractune_core.fleet.redis_users import USERS


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    state: options.State = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write log, jobs, models and bundles to a file. The server may be running."""
    check_free(file, force=force)
    check_writable("FILE", file)
    _print("backed up", server_backup().back_up(_folder(state), file), f"to {file}", as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `admin backup` wrote.")],
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Restore a backup into a new state folder. A server or stack started there continues from it."""
    folder = _folder(state)
    _print("restored", server_backup().restore(file, folder), f"to {folder}", as_json=as_json)


def _folder(state: Path | None) -> Path:
    return (state or default_state_dir()).expanduser()


def _print(verb: str, summary: Any, where: str, *, as_json: bool) -> None:
    """`summary`: a fractune_server.backup.BackupSummary."""
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


app = typer.Typer(help="Manage tenants, tokens, backups and Redis users of a fleet.", rich_markup_mode=None)
app.add_typer(admin_token.app, name="token")
app.add_typer(admin_tenant.app, name="tenant")
app.command("redis-acl")(redis_acl)
app.command("backup")(backup)
app.command("restore")(restore)


@app.callback()
def admin() -> None:
    """Manage tenants, tokens, backups and Redis users of a fleet."""
