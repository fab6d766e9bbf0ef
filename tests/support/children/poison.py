"""A simulated device whose clients fall together, and the confinement to a part of it: `poison`.

The device is a folder. Each client, a real process, holds a lock on a file of its own there. A fault leaves the file
`poisoned`, which fails whatever runs, and goes when no client is left: as an MPS server does after a fault. A client
that is killed in the middle of its work poisons the device too, unless it was released before.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare, Share
from fractune_workers.locks.flock import is_locked, lock, locked

FOLDER = "POISON_DEVICE"
"""the environment variable that names the folder"""


class PoisonDevice:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.poisoned = folder / "poisoned"
        self.broken = folder / "broken"
        """while it is there, the device does not come back"""
        self.rough = folder / "rough"
        """while it is there, no client can be released before it is killed"""
        self.crowded = folder / "crowded"
        """while it is there, no share can be proved beside others that are busy"""
        self.dead = folder / "dead"
        """what serves the device has died, until it is started again"""
        self.let_go = folder / "let-go"
        """once it is there, what waits for it ends"""

    def enter(self, pid: int) -> IO[bytes]:
        """The lock to hold for as long as the client lives."""
        with locked(self.folder / "lock"):  # whoever looks would find a file that is not locked yet, and remove it
            file = (self.folder / f"client-{pid}").open("ab")
            lock(file)
        return file

    def neighbours(self, pid: int) -> int:
        """How many other clients that live run something now."""
        with locked(self.folder / "lock"):
            busy = {path.name.partition("-")[2] for path in self.folder.glob("busy-*")} - {str(pid)}
            return sum(is_locked(self.folder / f"client-{each}") for each in busy)

    @contextlib.contextmanager
    def busy(self, pid: int) -> Iterator[None]:
        mark = self.folder / f"busy-{pid}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def is_active(self) -> bool:
        if self.dead.exists():
            raise ShareUnavailable("what serves the device has died")
        with locked(self.folder / "lock"):
            clients = [path for path in self.folder.glob("client-*") if self._lives(path)]
            if self.broken.exists():
                return False
            if not clients:
                self.poisoned.unlink(missing_ok=True)
            return not self.poisoned.exists()

    def release(self, pid: int) -> bool:
        if self.rough.exists():
            return False
        (self.folder / f"released-{pid}").touch()
        return True

    def note(self, kind: str, text: str) -> None:
        with (self.folder / kind).open("a") as file:
            file.write(text + "\n")

    def notes(self, kind: str) -> list[str]:
        path = self.folder / kind
        return path.read_text().splitlines() if path.exists() else []

    def faulted_alone(self, identity: str) -> bool:
        """Whether nothing else ran when the kernel faulted last. How often it ran says nothing: an attempt at it may
        have become void before it ran.
        """
        neighbours = [note.split()[1] for note in self.notes("faults") if note.split()[0] == identity]
        return neighbours[-1:] == ["0"]

    def _lives(self, client: Path) -> bool:
        pid = client.name.partition("-")[2]
        if is_locked(client):
            return True
        if (self.folder / f"busy-{pid}").exists() and not (self.folder / f"released-{pid}").exists():
            self.poisoned.touch()
        client.unlink()
        return False


class PoisonConfinement:
    """Stands where a worker would confine to a share of a GPU."""

    def __init__(self, share: Share, units: Sequence[int] = ()) -> None:
        self.share = share
        self.units = list(units)
        self.device = PoisonDevice(Path(os.environ[FOLDER]))
        self._held: IO[bytes] | None = None

    @property
    def fault_domain(self) -> str | None:
        return f"poison:{self.device.folder}"

    @property
    def gpu_uuid(self) -> str | None:
        return self.fault_domain

    def is_active(self) -> bool:
        return self.device.is_active()

    def restart_service(self) -> None:
        self.device.note("restarts", str(os.getpid()))
        self.device.dead.unlink(missing_ok=True)

    def before_kill(self, pid: int) -> bool:
        return self.device.release(pid)

    def probe(self) -> None:
        pass

    def environment(self) -> dict[str, str]:
        return {FOLDER: str(self.device.folder)}

    def enter(self) -> None:
        self._held = self.device.enter(os.getpid())
        if self.device.poisoned.exists():
            raise ShareUnavailable("the device is not ready: clients of before its fault are still there")

    def verify(self) -> GrantedShare:
        if self.device.crowded.exists() and any(self.device.folder.glob("busy-*")):
            raise ShareUnavailable("CUDA shows 25 SMs, and a kernel ran on 31")
        return GrantedShare(str(self.share), 25, 100, "sm", 1 << 33, reserved=False)

    def leave(self) -> None:
        if self._held is not None:
            self._held.close()
