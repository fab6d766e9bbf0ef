"""`fractune admin redis-acl`: the users of a fleet's Redis, as files."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from fractune_core.errors import StateUnusable
from fractune_core.fleet.redis_users import USERS, acl_file

ACL_FILE = "users.acl"


def redis_acl(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; created if it does not exist.")],
) -> None:
    """Write users.acl for Redis 7 or Valkey. Each user without a password file there gets one."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        passwords = {user: _password(folder / f"{user}.password") for user in USERS}
        draft = folder / f".{ACL_FILE}.new"
        draft.write_text(acl_file(passwords), encoding="utf-8")
        draft.replace(folder / ACL_FILE)
    except OSError as error:
        raise StateUnusable(f"cannot write the users of Redis to {folder}: {error.strerror}; name another") from error
    typer.echo(f"{folder / ACL_FILE}: start Redis with --aclfile and this file; it holds no password")
    for user in USERS:
        typer.echo(f"{folder / f'{user}.password'}: for --redis redis://{user}@HOST:PORT --redis-password-file")


def _password(path: Path) -> str:
    """The password in the file, or a new one of 256 random bits; the file appears whole or not at all."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        pass
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    password = secrets.token_hex(32)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(password + "\n")
    draft.rename(path)
    return password
