"""`fractune admin`: what an operator does with a server, on its own host."""

from __future__ import annotations

import typer

from fractune.cli.commands import admin_backup

app = typer.Typer(help="Look after a server, on its own host.", no_args_is_help=True)
app.command("backup")(admin_backup.backup)
app.command("restore")(admin_backup.restore)
