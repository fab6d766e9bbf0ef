"""A child that does what a model file must not make one do."""

import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fractune_core.errors import FractuneError

_PIECE = 1 << 20


def read(path: str) -> str:
    return Path(path).read_bytes().decode()


def write(path: str, count: int) -> None:
    with Path(path).open("wb") as file:
        file.seek(count - 1)
        file.write(b"x")


def environment() -> dict[str, str]:
    return dict(os.environ)


def parents_environment() -> str:
    return read(f"/proc/{os.getppid()}/environ")


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()


def connect_to_path(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(path)


def send_to_path(path: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.sendto(b"x", path)


def attempt(what: str, path: str, pid: int) -> None:
    """Of `_ATTEMPTS`: on the file `path`, which is another's, or the process `pid`, which it has not started."""
    _ATTEMPTS[what](path, pid)


def _call(number_x86: int, number_arm: int, *args: int) -> None:
    number = number_x86 if os.uname().machine == "x86_64" else number_arm
    if ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, (number, *args))) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _new_thread_by_clone(flags: int) -> None:
    _call(56, 220, flags | signal.SIGCHLD, 0, 0, 0, 0)


def _own(name: str) -> Path:
    return Path(os.environ["TMPDIR"]) / name


def _move_into_folder() -> None:
    _own("folder").mkdir()
    _own("file").write_text("x")
    _own("file").rename(_own("folder") / "file")


_ATTEMPTS: dict[str, Callable[[str, int], object]] = {
    "link": lambda path, _: _own("link").symlink_to(path),
    "hard link": lambda path, _: _own("hard").hardlink_to(path),
    "pipe": lambda *_: os.mkfifo(_own("pipe")),
    "move": lambda *_: _move_into_folder(),
    "own folder away": lambda *_: _own("").rename(_own("../other")),
    "limit": lambda _, pid: resource.prlimit(pid, resource.RLIMIT_AS, (1 << 40, 1 << 40)),
    "cores": lambda _, pid: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}),
    "scheduler": lambda _, pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
    "priority": lambda _, pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "all priorities": lambda *_: os.setpriority(os.PRIO_USER, 0, 19),
    "signal": lambda _, pid: os.kill(pid, signal.SIGKILL),
    "mode": lambda path, _: Path(path).chmod(0o644),
    "owner": lambda path, _: os.chown(path, os.getuid(), os.getgid()),
    "times": lambda path, _: os.utime(path),
    "attribute": lambda path, _: os.setxattr(path, "user.x", b"1"),
    "log": lambda *_: os.ftruncate(2, 0),
    "own limit": lambda *_: resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    "program": lambda *_: os.posix_spawn("/bin/true", ["true"], {}),
    "unshare": lambda *_: _call(272, 97, 0x10000000),
    "clone": lambda *_: _new_thread_by_clone(0x10000000),
    "shared memory": lambda *_: _call(29, 194, 0x1234, 4096, 0o1666),
    "queue": lambda *_: _call(68, 186, 0x1234, 0o1666),
    "key": lambda *_: _call(250, 219, 0, -3, 1),
}


def leave_group() -> None:
    os.setsid()


def allocate(count: int) -> int:
    return len(bytearray(count))


def fill_and_end(count: int, number: int) -> None:
    filled = b"x" * count
    if filled:
        os.kill(os.getpid(), number)


def burn(*, deaf: bool = False) -> None:
    if deaf:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True:
        pass


def stall(said: int, sent: str = "") -> None:
    """Says that `said` bytes follow, and sends only these."""
    os.write(int(sys.argv[1]), said.to_bytes(4, "big") + sent.encode())
    time.sleep(600)


def answer_with(name: str) -> None:
    """Answer with the error called `name`, whatever it means to the worker."""
    raise type(name, (FractuneError,), {})("not me")


def ingest(path: str, **_other: Any) -> dict[str, Any]:
    """Of a model whose name says what it costs."""
    name = Path(path).stem
    sys.stderr.write(f"reading {name}\n")
    sys.stderr.flush()
    if name == "endless":
        time.sleep(600)
    if name == "greedy":
        filled = []
        while True:
            filled.append(b"x" * _PIECE)
    if name == "abort":
        fill_and_end(400 * _PIECE, signal.SIGABRT)
    return {"target": '{"kind":"llvm"}', "target_key": "{}", "operators": []}


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    offered = (attempt, read, write, environment, parents_environment, leave_group)
    reaching = (connect, connect_to_path, send_to_path)
    return {
        each.__name__: each for each in (*offered, *reaching, stall, allocate, fill_and_end, burn, ingest, answer_with)
    }
