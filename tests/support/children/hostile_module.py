"""A child that does what a model file must not make one do."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def leave_group() -> None:
    os.setsid()


def allocate(count: int) -> int:
    return len(bytearray(count))


def fill_and_end(count: int, number: int) -> None:
    filled = b"x" * count
    if filled:
        os.kill(os.getpid(), number)


def burn() -> None:
    while True:
        pass


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
    return {"target": "{}", "target_key": "{}", "operators": []}


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    offered = (read, write, environment, parents_environment, connect, connect_to_path, leave_group)
    return {each.__name__: each for each in (*offered, allocate, fill_and_end, burn, ingest)}
