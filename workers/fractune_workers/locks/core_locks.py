"""The gate: a CPU measurement owns its cores; search and builds on the same cores wait. A GPU's leaves them alone.

One lock file for each core of the host. Search and builds hold their cores' locks shared, a measurement on the CPU
holds its own exclusively. A turnstile lets a waiting measurement in before work that came after it; work that is under
way sees it there, has its process stopped and steps aside. A measurement on a GPU (`gpu_gate`) holds shared, as builds
do, the cores that launch its kernels: builds go on beside it, and no CPU measurement meets it there. The kernel frees
the locks of a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from fractune_core.gpu_sharing import Claim
from fractune_workers.locks.flock import is_locked
from fractune_workers.locks.gpu_slots import GpuSlots, MeasurementSlot

QUIET_BELOW_CORES = 4
"""On a host with fewer cores than this, a measurement has the whole host to itself: a build on the one core
beside it takes memory bandwidth and clock from it."""


def default_lock_dir() -> Path:
    """The gate that all fractune processes of this user on this host share."""
    return Path(tempfile.gettempdir()) / f"fractune-gate-{os.getuid()}"


class CoreLocks:
    """Locks over the cores of this host, in `directory`."""

    def __init__(self, directory: Path, host_cores: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        """where all fractune workers of this host meet"""
        self._host_cores = host_cores or os.cpu_count() or 1
        # Process ids are no names here: containers that share the folder all have a process 1.
        self._mark = f"measuring-{uuid.uuid4().hex}"
        self.waited_s = 0.0
        """seconds that passages have had to wait, in all"""

    @contextlib.contextmanager
    def working(self, cores: Iterable[int]) -> Iterator[PreemptibleHold]:
        """Hold `cores` for search or builds; blocks while a measurement owns one of them or waits for it."""
        with contextlib.ExitStack() as held:
            hold = PreemptibleHold(self, held, sorted(cores))
            hold.enter()
            yield hold

    @contextlib.contextmanager
    def measuring(self, cores: Iterable[int]) -> Iterator[MeasurementSlot]:
        """Own `cores` for a measurement; its neighbours are the other CPU measurements active on this host."""
        owned = range(self._host_cores) if self._host_cores < QUIET_BELOW_CORES else sorted(cores)
        with contextlib.ExitStack() as held:
            self.take(held, owned, fcntl.LOCK_EX)
            held.enter_context(self._lock(self._mark, fcntl.LOCK_EX))
            held.callback((self.directory / self._mark).unlink)
            yield MeasurementSlot(self._neighbours())

    @contextlib.contextmanager
    def measuring_on(self, gpu: str, claim: Claim, cores: Iterable[int]) -> Iterator[MeasurementSlot]:
        """Hold `claim` of the GPU (its UUID), and `cores`, from which its kernels are launched."""
        with contextlib.ExitStack() as held:
            start = time.perf_counter()
            # The GPU first: who waits for it must not keep a CPU measurement off the cores.
            turn = held.enter_context(GpuSlots(self.directory, gpu).holding(claim))
            self.waited_s += time.perf_counter() - start
            self.take(held, sorted(cores), fcntl.LOCK_SH)
            yield turn

    def is_measurement_waiting(self) -> bool:
        """Whether a measurement stands in the turnstile, or is just passing it."""
        return is_locked(self.directory / "turnstile")

    def take(self, held: contextlib.ExitStack, cores: Iterable[int], how: int) -> None:
        """Lock `cores`, one after the other; `held` unlocks them."""
        start = time.perf_counter()
        with self._lock("turnstile", how):
            for core in cores:
                held.enter_context(self._lock(f"core-{core}", how))
        self.waited_s += time.perf_counter() - start

    def _neighbours(self) -> int:
        marks = [path for path in self.directory.glob("measuring-*") if path.name != self._mark]
        return sum(map(is_locked, marks))

    @contextlib.contextmanager
    def _lock(self, name: str, how: int) -> Iterator[None]:
        with (self.directory / name).open("a") as file:
            fcntl.flock(file, how)
            yield


class PreemptibleHold:
    """Work under way behind the gate."""

    def __init__(self, core_locks: CoreLocks, held: contextlib.ExitStack, cores: list[int]) -> None:
        self._locks = core_locks
        self._held = held
        self._cores = cores

    def enter(self) -> None:
        self._locks.take(self._held, self._cores, fcntl.LOCK_SH)

    def is_wanted(self) -> bool:
        """Whether a measurement waits for work to step aside."""
        return self._locks.is_measurement_waiting()

    def step_aside(self) -> None:
        """Let what waits measure, and come back after it. The caller computes nothing in between."""
        self._held.close()
        self.enter()
