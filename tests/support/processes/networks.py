"""Networks of a test's own, and links between them that can be cut. Only root can make them.

This file is imported where pytest is not installed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import unittest
from pathlib import Path
from types import TracebackType
from typing import Self

_NEWNET = 0x40000000  # CLONE_NEWNET of linux/sched.h
OWN_NETWORK = Path("/proc/thread-self/ns/net")
_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """A network namespace: what is started within `with network:` is in it. Skips the test where none can be made."""

    def __init__(self) -> None:
        if shutil.which("ip") is None:
            raise unittest.SkipTest("no `ip` here; apt-get install iproute2")
        before = OWN_NETWORK.open("rb")
        if _libc.unshare(_NEWNET):
            before.close()
            why = os.strerror(ctypes.get_errno())
            raise unittest.SkipTest(f"networks of a test's own: {why}; run the tests as root")
        self._file = OWN_NETWORK.open("rb")
        enter_network(before.fileno())
        before.close()

    def connect(self, other: Network, number: int) -> None:
        """A link to another network: 10.99.NUMBER.2 here, 10.99.NUMBER.1 there."""
        with self:
            peer = f"/proc/{os.getpid()}/fd/{other._file.fileno()}"
            _ip(f"link add name eth{number} type veth peer name eth{number} netns {peer}")
        for network, address in ((self, 2), (other, 1)):
            with network:
                _ip(f"addr add 10.99.{number}.{address}/24 dev eth{number}")
                _ip(f"link set eth{number} up")

    def cut(self, number: int) -> None:
        with self:
            _ip(f"link set eth{number} down")

    def close(self) -> None:
        """It is gone when what was started in it has ended."""
        self._file.close()

    def __enter__(self) -> Self:
        self._before = OWN_NETWORK.open("rb")
        enter_network(self._file.fileno())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        enter_network(self._before.fileno())
        self._before.close()


def enter_network(namespace: int) -> None:
    """This thread alone; no right is needed for the network that it is in."""
    if os.fstat(namespace).st_ino == OWN_NETWORK.stat().st_ino:
        return
    if _libc.setns(namespace, _NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
