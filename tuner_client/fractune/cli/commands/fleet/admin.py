"""`fractune admin ...`: occasional tasks of the operator of a fleet."""

from __future__ import annotations

import typer

from fractune.cli.commands.fleet import admin_token
from fractune.cli.commands.fleet.admin_backup import backup, restore
from fractune.cli.commands.fleet.redis_acl import redis_acl

app = typer.Typer(help="Manage tokens, backups and Redis users of a fleet.", rich_markup_mode=None)
app.add_typer(admin_token.app, name="token")
app.command("redis-acl")(redis_acl)
app.command("backup")(backup)
app.command("restore")(restore)


@app.callback()
def admin() -> None:
    """Manage tokens, backups and Redis users of a fleet."""
