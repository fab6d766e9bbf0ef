"""The state folder of a one-machine stack: made, proved writable, and locked for one stack at a time."""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import platformdirs

from fractune_core.errors import StateUnusable
from fractune_core.host.machine import is_full
from fractune_core.host.private_folders import warning_of_state

STATE = "FRACTUNE_STATE"
"""the environment variable that names the folder in place of an option"""
SOCKET_PATH_BYTES = 107
"""longest path of a Unix socket (the kernel's sun_path, less its closing zero)"""
_PREFIX, _SHORTEST = "fractune-", "/tmp"  # noqa: S108  the folder that is made in it is this user's alone
"""of temporary folders, and the place for one where TMPDIR is too long as well"""
_PROBE_BYTES = 1 << 16
"""written to detect a full disk: before anything starts, and when a part has ended"""


def default_state_dir() -> Path:
    """The folder that FRACTUNE_STATE names, else the user's data folder."""
    return Path(os.environ.get(STATE) or platformdirs.user_data_dir("fractune"))


class StackFolder:
    """A folder that this process holds; made by `open_state`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def lock_file(self) -> Path:
        return self.path / LOCK_FILE

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    @property
    def redis_dir(self) -> Path:
        return self.path / "redis"

    def probe(self) -> None:
        """Raises OSError if the folder cannot be written."""
        probe = self.path / "probe"
        try:
            with probe.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    def failure(self) -> StateUnusable | None:
        """The reason why the folder cannot be written; None if it can."""
        try:
            self.probe()
        except OSError as error:
            return _unusable(self.path, error)
        return None

    def full(self) -> StateUnusable:
        """The error if a part has found the disk full."""
        return _unusable(self.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def publish_address(
        self, address: str, *, for_others: bool, skipped_shares: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Let other commands find this stack; with `for_others` it outlives the command that started it."""
        entry = StackEntry(os.getpid(), address, for_others, skipped_shares)
        self.lock_file.write_text(entry.to_text(), encoding="utf-8")


@contextlib.contextmanager
def open_state(path: Path) -> Iterator[StackFolder]:
    """Make the folder if need be and hold it until the block ends.

    Raises StateUnusable when it cannot be written, or is in use by another stack.
    """
    folder = StackFolder(path.expanduser().absolute())
    try:
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = folder.lock_file.open("a+")
    except OSError as error:
        raise _unusable(folder.path, error) from error
    with lock:
        _hold(lock.fileno(), folder)
        try:
            if warning := warning_of_state(folder.path):
                sys.stderr.write(f"note: {warning}\n")
            _prepare(folder)
        except OSError as error:
            raise _unusable(folder.path, error) from error
        try:
            yield folder
        finally:
            # An empty file: this stack did not die. A failed write must not hide the end of the block.
            with contextlib.suppress(OSError):
                os.truncate(folder.lock_file, 0)


def _hold(descriptor: int, folder: StackFolder) -> None:
    if not take(descriptor):
        entry = read_entry(folder.path)
        server = f"--server {entry.address}" if entry and entry.address else "--server HOST:PORT"
        raise StateUnusable(
            f"another fractune stack (pid {entry.pid if entry else 'unknown'}) uses {folder.path}; "
            f"pass --state with another folder, or {server} to use that stack"
        )


def _prepare(folder: StackFolder) -> None:
    folder.lock_file.write_text(StackEntry(os.getpid()).to_text(), encoding="utf-8")
    folder.probe()
    for needed in (folder.logs, folder.redis_dir):
        needed.mkdir(exist_ok=True)
    _ensure_secret(folder.secret_file)


def _ensure_secret(path: Path) -> None:
    """Make the fleet's secret once; the file appears whole or not at all."""
    if path.exists():
        return
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    draft.rename(path)


def _unusable(path: Path, error: OSError) -> StateUnusable:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return StateUnusable(f"state folder {path}: a file is in the way; pass --state with a folder")
    why, remedy = error.strerror or str(error), "free space there, or " if is_full(error) else ""
    return StateUnusable(f"state folder {path}: {why}; {remedy}pass --state with a writable folder")


@contextlib.contextmanager
def socket_dir(folder: StackFolder, longest_name: str) -> Iterator[Path]:
    """A folder for Unix sockets: in the state folder, or a temporary one when that path is too long."""
    inside = folder.path / "run"
    if _fits(inside / longest_name):
        inside.mkdir(exist_ok=True, mode=0o700)
        yield inside
        return
    usual = tempfile.gettempdir()
    parent = usual if _fits(Path(usual, f"{_PREFIX}12345678", longest_name)) else _SHORTEST
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as short:
        yield Path(short)


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= SOCKET_PATH_BYTES


LOCK_FILE = "stack.lock"
_FOR_OTHERS = "for others"
_GLANCE_S = 0.02
"""longer than a check of the lock holds it"""


@dataclass(frozen=True)
class StackEntry:
    """A stack's entry in the lock's file."""

    pid: int
    address: str = ""
    """HOST:PORT or unix:PATH; empty while it starts"""
    for_others: bool = False
    """it runs until it is stopped, like the stack of `fractune up`; other stacks end with the command that started
    them"""
    skipped_shares: Mapping[str, str] = field(default_factory=dict)
    """shares that it was to measure at and that could not be verified, each with the cause"""

    def to_text(self) -> str:
        skipped = json.dumps(self.skipped_shares) if self.skipped_shares else ""
        lines = [str(self.pid), self.address, _FOR_OTHERS if self.for_others else "", skipped]
        return "\n".join(filter(None, lines)) + "\n"


def read_entry(state: Path) -> StackEntry | None:
    """The last stack's entry, of a running or a dead stack; None if the last stack ended in order, or none ran."""
    try:
        lines = (state / LOCK_FILE).read_text(encoding="utf-8").splitlines()
        skipped: dict[str, str] = next((json.loads(line) for line in lines[2:] if line.startswith("{")), {})
        return StackEntry(int(lines[0]), "".join(lines[1:2]), _FOR_OTHERS in lines[2:], skipped)
    except (OSError, ValueError, IndexError):
        return None


def is_running(state: Path) -> bool:
    """Return True if a process holds the folder. Nothing is made or changed there."""
    try:
        with (state / LOCK_FILE).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def take(descriptor: int) -> bool:
    """Lock the open file for this process; False if another process holds it. It waits out a check by `is_running`."""
    for _ in range(10):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_GLANCE_S)
    return False
