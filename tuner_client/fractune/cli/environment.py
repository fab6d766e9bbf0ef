"""Environment variables of a fleet's parts, besides those of `fractune.server.credentials`.

The Python API reads FRACTUNE_SERVER and FRACTUNE_STATE too (`fractune.sessions.session`, `fractune.local.state`).
"""

import os
from pathlib import Path

from fractune_core.access.addresses import with_password
from fractune_core.errors import BadRequest

SECRET = "FRACTUNE_SECRET"  # noqa: S105  - the variable's name
DATABASE = "FRACTUNE_DATABASE"
DATABASE_PASSWORD_FILE = "FRACTUNE_DATABASE_PASSWORD_FILE"  # noqa: S105  - the variable's name


def fleet_secret(secret_file: Path | None) -> bytes:
    """The fleet's secret, from the file or from FRACTUNE_SECRET. Raises BadRequest if there is none."""
    text = os.environ.get(SECRET, "") if secret_file is None else _read("--secret-file", secret_file)
    if not text.strip():
        source = str(secret_file) if secret_file else SECRET
        raise BadRequest(
            f"{source} holds no secret; give the server and every worker the same secret, by --secret-file or {SECRET}"
        )
    return text.strip().encode()


def redis_address(url: str, password_file: Path | None) -> str:
    """The address of Redis with the password from the file, hidden from lists of processes. Raises BadRequest."""
    return _with_password("--redis-password-file", url, password_file)


def database_address(url: str | None, password_file: Path | None, *, heed_environment: bool = True) -> str | None:
    """The address of the database, from the options or else the environment; None for SQLite. Raises BadRequest."""
    option = "--database-password-file"
    if url is None and heed_environment:
        url = os.environ.get(DATABASE) or None
        named = os.environ.get(DATABASE_PASSWORD_FILE)
        if url and named and password_file is None:
            option, password_file = DATABASE_PASSWORD_FILE, Path(named)
    if url is None and password_file is not None:
        raise BadRequest(f"{option} {password_file}: name the database by --database too")
    return None if url is None else _with_password(option, url, password_file)


def _with_password(option: str, url: str, file: Path | None) -> str:
    if file is None:
        return url
    password = _read(option, file).strip()
    if not password:
        raise BadRequest(f"{option} {file} is empty; write the password of the user in the address into it")
    return with_password(url, password)


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadRequest(f"cannot read {option} {path}: {why}") from error
