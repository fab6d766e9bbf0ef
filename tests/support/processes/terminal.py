"""The command `fractune` at a terminal of its own: what a person sees there and types, and what happens when it is
closed.
"""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.support.paths import REPOSITORY

CTRL_C = b"\x03"
ENTER = b"\r"
_TIMEOUT_S = 60.0


class Terminal:
    """One command at a terminal; made by `at_terminal`."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self._process = process
        self._screen: int | None = screen
        self._seen = b""

    def wait_for(self, text: str) -> None:
        """Read until the text has appeared; what stands before it is not looked at again."""
        deadline = time.monotonic() + _TIMEOUT_S
        while text.encode() not in self._seen:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"no '{text}' appeared, but: {self._seen.decode(errors='replace')}")
        self._seen = self._seen.partition(text.encode())[2]

    def type(self, keys: bytes) -> None:
        assert self._screen is not None
        os.write(self._screen, keys)

    def close(self) -> None:
        """Close the window: the kernel hangs the terminal up."""
        if self._screen is not None:
            os.close(self._screen)
            self._screen = None

    def ended(self) -> int:
        """Its exit code; what it still prints is read, so that it can end."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        return self._process.wait(0.1)

    def _read(self, timeout_s: float) -> bool:
        """Whether there was something before the time was over, or the command's end."""
        if self._screen is None:
            time.sleep(0.02)
            return False
        if not select.select([self._screen], [], [], max(timeout_s, 0.0))[0]:
            return False
        with contextlib.suppress(OSError):  # how Linux says that nobody has the terminal open any more
            part = os.read(self._screen, 1 << 16)
            self._seen += part
            return bool(part)
        return False


@contextlib.contextmanager
def at_terminal(*args: str) -> Iterator[Terminal]:
    """`fractune ARGS` as the only program of a terminal; killed with the block if it still runs."""
    screen, keyboard = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    # setsid gives it a session, and that the terminal: only then Ctrl-C and a closed window become signals.
    command = ["setsid", "--ctty", sys.executable, "-m", "fractune.cli", *args]
    process = subprocess.Popen(command, stdin=keyboard, stdout=keyboard, stderr=keyboard, env=env)
    os.close(keyboard)
    terminal = Terminal(process, screen)
    try:
        yield terminal
    finally:
        process.kill()
        process.wait()
        terminal.close()
