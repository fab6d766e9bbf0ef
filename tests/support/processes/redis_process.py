"""A real Redis for tests, on a Unix socket: the server that a one-machine stack would start."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from fractune.local.embedded_redis import redis_binary
from fractune_core.access import with_password
from fractune_core.codec.plain_json import from_json
from fractune_core.fleet.messages import PieceDone
from fractune_core.fleet.redis_names import EVENT_FIELD, SERVER_STREAM
from fractune_core.fleet.redis_users import USERS, acl_file
from fractune_core.fleet.signed_messages import open_event
from fractune_core.records import WorkCost
from tests.support.secret import SECRET


def wait_until(holds: object, timeout_s: float = 60.0, every_s: float = 0.02) -> None:
    """Poll `holds` (a callable) until it is true. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if callable(holds) and holds():
            return
        time.sleep(every_s)
    raise TimeoutError(f"not within {timeout_s} s: {holds}")


def events_of(connection: redis.Redis, stream: str) -> list[dict[str, Any]]:
    """All that was ever sent on the stream and was not trimmed, but for what work has taken."""
    return [event for event in _all_events(connection, stream) if event["event"] != "piece_done"]


def pieces_of(connection: redis.Redis) -> list[WorkCost]:
    """What work has taken, as it was told to the server."""
    events = _all_events(connection, SERVER_STREAM)
    return [from_json(PieceDone, event) for event in events if event["event"] == "piece_done"]


def _all_events(connection: redis.Redis, stream: str) -> list[dict[str, Any]]:
    entries: Any = connection.xrange(stream)
    return [open_event(SECRET, fields[EVENT_FIELD.encode()]) for _, fields in entries]


@contextlib.contextmanager
def commands_of(connection: redis.Redis) -> Iterator[dict[str, int]]:
    """How often each command was given to Redis within the block, by whomever; filled when the block ends."""
    found: dict[str, int] = {}
    connection.config_resetstat()
    yield found
    stats: Any = connection.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}
    found.update((name, count) for name, count in calls.items() if name not in ("config|resetstat", "config", "info"))


@contextlib.contextmanager
def running_redis(*options: str) -> Iterator[str]:
    """Start Redis and give its URL; stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="fractune-redis-") as folder:
        socket = Path(folder) / "redis.sock"
        process = subprocess.Popen(
            [str(redis_binary()), "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", "", *options],
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: _answers(socket))
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def redis_with_users(folder: Path) -> Iterator[Callable[[str], str]]:
    """A Redis with the users of a fleet; gives the URL of each by name."""
    passwords = {user: f"the password of {user}/{user}" for user in USERS}
    users = folder / "users.acl"
    users.write_text(acl_file(passwords))
    with running_redis("--aclfile", str(users)) as url:
        yield lambda user: with_password(url.replace("://", f"://{user}@"), passwords[user])


def _answers(socket: Path) -> bool:
    with redis.Redis(unix_socket_path=str(socket)) as connection:
        try:
            return bool(connection.ping())
        except redis.AuthenticationError:  # it answers, and not to everybody
            return True
        except redis.ConnectionError:
            return False
