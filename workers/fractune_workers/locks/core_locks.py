"""A CPU measurement owns its cores: search and builds there wait. A GPU measurement leaves them running.

One lock file for each core of the host. Search and builds hold their cores' locks shared, a measurement on the CPU
holds its own exclusively, and those of other CPUs of the same physical cores. A turnstile lets a waiting measurement in
before later work. Work in progress sees that the turnstile is taken, stops its process and releases its cores until the
measurement is over. Then it keeps them for a part of its wait: it would never end where the measurements of several
stacks follow each other. A measurement on a GPU (`gpu_slots`) holds the cores that launch its kernels shared, as builds
do: builds go on beside it, and no CPU measurement runs on those cores. The kernel frees the locks of a process that
dies.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fractune_core.codec.plain_json import checked, read_json, write_json
from fractune_core.fleet.messages import CoreHolder
from fractune_core.host.cpus import CpuTopology
from fractune_core.host.private_folders import make_private, open_plain, private_path
from fractune_core.shares import QUIET_BELOW_CORES
from fractune_workers.locks.flock import is_locked, lock, locked
from fractune_workers.locks.gpu_slots import Claim, GpuSlots, MeasurementSlot

_WAIT_NOTED_S = 4.0
"""a shorter wait for cores is usual"""
_KEPT_PART, _MOST_KEPT_S = 0.25, 2.0
"""how long work keeps its cores from measurements: a part of the time that it has waited for them, with a limit"""
_log = logging.getLogger(__name__)


def default_lock_dir() -> Path:
    """The folder of lock files that all fractune processes of this user on this host share. Raises StateUnusable."""
    return make_private(private_path(f"fractune-gate-{os.getuid()}"))


class CoreLocks:
    """Locks over the cores of this host, in `directory`."""

    def __init__(self, directory: Path, host_cores: int | None = None, topology: CpuTopology | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        """shared by all fractune workers of this host"""
        self._host_cores = host_cores or os.cpu_count() or 1
        self._topology = topology or CpuTopology.read()
        # Process ids are no names here: containers that share the folder all have a process 1.
        self._mark = f"measuring-{uuid.uuid4().hex}"
        self._wanted: tuple[float, set[int]] | None = None
        """while this process waits for cores: since when, in monotonic seconds, and for which"""
        self.waited_s = 0.0
        """seconds spent waiting for locks, in all"""
        self._claims = contextlib.ExitStack()

    def claim(self, available: Sequence[int], count: int) -> list[int]:
        """Claim `count` of the `available` cores that no other measurer of this host has claimed, until this process
        ends, as `CpuTopology.choose` does. If too few are left, return some that are claimed: their measurements
        alternate, and the log says so.
        """
        with locked(self.directory / "claims"):
            left = [core for core in available if not is_locked(self._claim(core))]
            cores = self._topology.choose(left, count)
            if len(cores) == count:
                for core in cores:
                    lock(self._claims.enter_context(open_plain(self._claim(core), "a")))
                return cores
        shared = self._topology.choose(available, count)
        if len(shared) == count:  # else the share is refused anyway
            _log.warning(
                "other measurers of this host have claimed %d of the cores %s, and %d are wanted: this one shares "
                "the cores %s with them, one measurement at a time",
                len(available) - len(left),
                list(available),
                count,
                shared,
            )
        return shared

    @contextlib.contextmanager
    def working(self, cores: Iterable[int]) -> Iterator[PreemptibleHold]:
        """Hold `cores` for search or builds; blocks while a measurement owns one of them or waits for it."""
        with contextlib.ExitStack() as held:
            hold = PreemptibleHold(self, held, sorted(cores))
            hold.take()
            yield hold

    @contextlib.contextmanager
    def measuring(self, cores: Iterable[int]) -> Iterator[MeasurementSlot]:
        """Own `cores` for a measurement; its co-runners are the other CPU measurements active on this host."""
        small = self._host_cores < QUIET_BELOW_CORES
        whole = self._topology.with_siblings(cores)
        # The numbers of a small host may have gaps where CPUs are offline.
        owned = sorted(whole.union(range(self._host_cores)) if small else whole)
        with contextlib.ExitStack() as held:
            self.take(held, owned, shared=False)
            held.enter_context(locked(self.directory / self._mark))
            held.callback((self.directory / self._mark).unlink)
            own = CoreHolder(socket.gethostname(), os.getpid(), owned)
            # After a write to a full disk others do not know who measures.
            with contextlib.suppress(OSError), open_plain(self.directory / self._mark, "w") as mark:
                mark.write(write_json(own))
            yield MeasurementSlot(len(self._other_marks()))

    @contextlib.contextmanager
    def measuring_on(self, slots: GpuSlots, claim: Claim, cores: Iterable[int]) -> Iterator[MeasurementSlot]:
        """Hold `claim` in the slots of a GPU, and `cores`, from which its kernels are launched. A measurer's own slots
        may keep the claim (`GpuTurns`).
        """
        with contextlib.ExitStack() as held:
            start = time.perf_counter()
            # The GPU first: waiting for it must not keep a CPU measurement off the cores.
            slot = held.enter_context(slots.holding(claim))
            self.waited_s += time.perf_counter() - start
            self.take(held, sorted(cores), shared=True)
            yield slot

    def is_measurement_waiting(self) -> bool:
        """Whether a measurement is in the turnstile: it waits for its cores, or is about to get them."""
        return is_locked(self.directory / "turnstile")

    def take(self, held: contextlib.ExitStack, cores: Iterable[int], *, shared: bool) -> None:
        """Lock `cores`, one after the other; `held` unlocks them."""
        start, cores = time.perf_counter(), list(cores)
        self._wanted = time.monotonic(), set(cores)
        with locked(self.directory / "turnstile", shared=shared):
            for core in cores:
                held.enter_context(locked(self.directory / f"core-{core}", shared=shared))
        self._wanted = None
        self.waited_s += time.perf_counter() - start

    def awaited_holders(self) -> list[CoreHolder]:
        """The measurements that have kept this process from its cores for some seconds. Any thread may call it."""
        since_s, cores = self._wanted or (math.inf, set[int]())
        if time.monotonic() - since_s < _WAIT_NOTED_S:
            return []
        holders = filter(None, map(_read_mark, self._other_marks()))
        return [holder for holder in holders if not cores.isdisjoint(holder.cores)]

    def _claim(self, core: int) -> Path:
        return self.directory / f"claim-{core}"

    def _other_marks(self) -> list[Path]:
        """The files of other processes that measure now."""
        marks = (path for path in self.directory.glob("measuring-*") if path.name != self._mark)
        return [path for path in marks if is_locked(path)]


def _read_mark(path: Path) -> CoreHolder | None:
    """None for a measurement that is about to write it, or has just ended."""
    try:
        return checked(CoreHolder, read_json(path.read_bytes()))
    except (OSError, ValueError):
        return None


class PreemptibleHold:
    """The cores of search or builds, which a measurement may ask back at any time."""

    def __init__(self, core_locks: CoreLocks, held: contextlib.ExitStack, cores: list[int]) -> None:
        self._locks = core_locks
        self._held = held
        self._cores = cores
        self._kept_until_s = 0.0

    def take(self) -> None:
        began_s = time.monotonic()
        self._locks.take(self._held, self._cores, shared=True)
        now_s = time.monotonic()
        self._kept_until_s = now_s + min(_KEPT_PART * (now_s - began_s), _MOST_KEPT_S)

    def is_wanted(self) -> bool:
        """Whether a measurement waits for cores that are not kept from it."""
        return time.monotonic() >= self._kept_until_s and self._locks.is_measurement_waiting()

    def yield_cores(self) -> None:
        """Give the cores up, and return once they are held again. The caller computes nothing in between."""
        self._held.close()
        self.take()
