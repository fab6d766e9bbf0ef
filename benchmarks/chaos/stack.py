"""`fractune up` as a process that may die at any moment, and the processes that it consists of."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.chaos.schedule import REDIS, STACK, Victim
from fractune_workers.measuring.audit import AUDIT_VARIABLE
from tests.support.processes.cli_process import command_of, descendants, parent_of

ROLES = {"compile": "compiler", "tune": "tuner", "build": "builder", "measure": "measurer"}
_CHILDREN = {"compiling": "compiler", "searching": "tuner", "building": "builder", "measuring": "measurer"}
_CHILD = "fractune_workers.children"
_STOP_TIMEOUT_S = 60.0


class UpProcess:
    """`fractune up` on a state folder of `folder`, started again by `tend` whenever it has ended."""

    def __init__(self, folder: Path, shares: str) -> None:
        self.address = f"unix:{folder / 'up.sock'}"
        self.state, self.audit, self.log = folder / "state", folder / "audit", folder / "up.log"
        self.ended_by_itself: list[str] = []
        """its last output each time that it ended without a kill"""
        self._shares = shares
        self._killed = False
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tend(self) -> None:
        """Start it again if it has ended."""
        if self._process.poll() is None:
            return
        if not self._killed:
            lines = self.log.read_text(errors="replace").splitlines()
            self.ended_by_itself.append(f"exit code {self._process.returncode}: {lines[-1] if lines else ''}")
        self._process = self._start()

    def kill(self) -> None:
        self._killed = True
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        finally:
            self._process.kill()

    def living(self) -> dict[str, list[Victim]]:
        """Its processes by kind, itself included."""
        found: dict[str, list[Victim]] = {STACK: [Victim(self.pid, STACK, STACK)]}
        for pid in sorted(descendants(self.pid)):
            victim = _victim(pid, parent_of(pid), self.pid)
            if victim is not None:
                found.setdefault(victim.kind, []).append(victim)
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        self._killed = False
        command = ["up", "--shares", self._shares, "--listen", self.address, "--state", str(self.state)]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "fractune.cli", *command],
                stdout=output,
                stderr=output,
                env={**os.environ, AUDIT_VARIABLE: str(self.audit)},
            )


def _victim(pid: int, parent: int, stack: int) -> Victim | None:
    """The part of the stack that a process is; None for one that is just beginning, or ending."""
    command = command_of(pid)
    words = command.split()
    if parent == stack:
        return _part(pid, command, words)
    if _CHILD not in words:
        return None
    role = next((role for module, role in _CHILDREN.items() if f"{_CHILD}.{module}.child" in words), None)
    if role is None:
        return None
    return Victim(pid, f"{role}'s {'fork' if _CHILD in command_of(parent).split() else 'child'}", parent=parent)


def _part(pid: int, command: str, words: Sequence[str]) -> Victim | None:
    if "redis-server" in command or "valkey-server" in command:
        return Victim(pid, REDIS, REDIS)
    if "fractune.cli" not in words:
        return None
    if "server" in words:
        return Victim(pid, "server", "server")
    if "worker" not in words:
        return None
    # Its name is the part's, and eight random digits.
    part = words[words.index("--name") + 1].rpartition("-")[0]
    return Victim(pid, ROLES[words[words.index("--role") + 1]], part)


@contextlib.contextmanager
def running_up(folder: Path, shares: str) -> Iterator[UpProcess]:
    """Stopped with the block, if it is not before."""
    process = UpProcess(folder, shares)
    try:
        yield process
    finally:
        process.stop()


def audit_lines(folder: Path) -> Iterator[list[str]]:
    """The lines of each audit file."""
    for file in sorted(folder.glob("*.jsonl")):
        yield file.read_text().splitlines()


def logs_of(state: Path) -> dict[str, int]:
    """The number of lines with a traceback in each part's log: users should see none."""
    found = {log.stem: log.read_text(errors="replace").count("Traceback (most") for log in (state / "logs").glob("*")}
    return {name: count for name, count in sorted(found.items()) if count}
