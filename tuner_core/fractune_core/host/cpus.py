"""The CPUs of this process and of this host, as the kernel shows them in `/proc` and `/sys`.

Cgroups have quotas and count their throttling. CPUs may be threads of one physical core, and belong to NUMA nodes. A
hypervisor may hide both: then each CPU looks like a core of its own, and all are in one node.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

ROOT = Path("/")
QUOTA_FILES = ("cpu.max", "cpu.max.burst", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us")
"""in the folder of a cgroup, of both versions"""
_MOST_BYTES = 4096
"""read of one file at a time; the kernel returns no more in one call"""


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores that cgroups allow this process, the least over its cgroup and all ancestors; None without a quota.

    Version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`) are read, whichever is mounted.
    """
    quota = tightest_quota(root)
    return None if quota is None else quota.cores


@dataclass(frozen=True)
class Quota:
    """The CPU time that a cgroup may use in a period."""

    quota_us: int
    period_us: int
    burst_us: int = 0
    """CPU time that it may save up in idle periods, and use later on top of the quota"""

    @property
    def cores(self) -> float:
        return self.quota_us / self.period_us

    @property
    def millicores(self) -> int:
        """rounded up"""
        return -(-1000 * self.quota_us // self.period_us)


def tightest_quota(root: Path = ROOT) -> Quota | None:
    """The quota that limits this process most, of its cgroup and all ancestors; the innermost of equal ones."""
    limiting = limiting_cgroup(root)
    return None if limiting is None else limiting[1]


def limiting_cgroup(root: Path = ROOT) -> tuple[Path, Quota] | None:
    """The cgroup with the tightest quota, and the quota."""
    quotas = [(folder, quota) for folder in cgroup_folders(root) if (quota := _quota_of(folder)) is not None]
    return min(quotas, key=lambda each: each[1].cores, default=None)


@dataclass(frozen=True)
class Throttling:
    """How often and how long a cgroup was stopped because its quota was used up, since it was made."""

    count: int
    """periods"""
    throttled_s: float
    """of all cores together"""


class ThrottledSince:
    """How long this process has been stopped by its cgroup's quota, or by one above, since the object was made. After
    a move to another cgroup it counts on from the first reading there: that cgroup may have stopped others before.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._before = self._counts()
        self._earlier_s = self._last_s = 0.0

    def seconds(self) -> float | None:
        """Of all CPUs together, as the kernel counts it, by the cgroup that stopped it longest. None where no cgroup
        counts it.
        """
        now = self._counts()
        if now.keys() != self._before.keys():
            self._before, self._earlier_s = now, self._last_s
        if not now:
            return None
        self._last_s = self._earlier_s + max(now[folder] - self._before[folder] for folder in now)
        return self._last_s

    def _counts(self) -> dict[Path, float]:
        return {folder: each.throttled_s for folder in cgroup_folders(self._root) for each in throttlings([folder])}


def throttlings(folders: Iterable[Path]) -> list[Throttling]:
    """Of those cgroups (`cgroup_folders`) that count it, in their order.

    Version 2 counts in microseconds (`throttled_usec`) and version 1 in nanoseconds (`throttled_time`).
    """
    return [found for folder in folders if (found := _throttling_of(folder)) is not None]


def _throttling_of(folder: Path) -> Throttling | None:
    try:
        counts = {name: int(count) for name, count in map(str.split, (folder / "cpu.stat").read_text().splitlines())}
    except (OSError, ValueError):
        return None
    if "nr_throttled" not in counts:
        return None
    throttled_s = counts.get("throttled_usec", 0) * 1e-6 + counts.get("throttled_time", 0) * 1e-9
    return Throttling(counts["nr_throttled"], throttled_s)


def _quota_of(folder: Path) -> Quota | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            burst = "cpu.max.burst"
        elif (folder / "cpu.cfs_quota_us").exists():
            quota, period = ((folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
            burst = "cpu.cfs_burst_us"
        else:
            return None
        if quota == "max" or int(quota) <= 0 or int(period) <= 0:
            return None
        return Quota(int(quota), int(period), _number_in(folder / burst))
    except (OSError, ValueError):
        return None


def _number_in(path: Path) -> int:
    """0 where the kernel has no such file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def cgroup_folders(root: Path = ROOT, controller: str = "cpu") -> Iterator[Path]:
    """The folders of this process's cgroup of a controller and its ancestors, as far as they are mounted here."""
    try:
        cgroups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in cgroups:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in mounts:
            found = _mounted(mount, controller if controllers else "")
            if found is not None:
                yield from _upwards(root, *found, path)


def _mounted(line: str, controller: str) -> tuple[PurePosixPath, PurePosixPath] | None:
    """Of a line of `mountinfo`: which part of the controller's hierarchy is mounted, and where; else None.

    Version 2 has one hierarchy for all controllers: an empty name.
    """
    before, _, after = line.partition(" - ")
    fields, (found, *_, options) = before.split(), after.split()
    if found != ("cgroup" if controller else "cgroup2") or (controller and controller not in options.split(",")):
        return None
    return PurePosixPath(fields[3]), PurePosixPath(fields[4])


def _upwards(root: Path, part: PurePosixPath, mount: PurePosixPath, path: str) -> Iterator[Path]:
    """From the cgroup `path` up to the top of what is mounted; only the top where the mount does not hold `path`."""
    cgroup = PurePosixPath(path)
    inside = cgroup.relative_to(part) if cgroup.is_relative_to(part) and ".." not in cgroup.parts else PurePosixPath()
    for folder in (mount / inside, *(mount / inside).parents):
        if folder.is_relative_to(mount):
            yield root / folder.relative_to("/")


class LimitFiles:
    """The quotas of this process's cgroup and of those above it, and its affinity. It opens them at the first reading,
    and again in a forked child and after a move to another cgroup.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._opened: _Opened | None = None

    def read(self) -> tuple[Any, ...]:
        """The contents, which differ from those of an earlier reading if a limit has changed. It takes some 10 us. Any
        thread may call it.
        """
        process = os.getpid()
        opened = self._opened
        texts = opened.texts() if opened is not None and opened.process == process else None
        if texts is None:
            opened = self._opened = _Opened(process, self._root)
            texts = opened.texts()
        return os.sched_getaffinity(process), texts


class _Opened:
    """The open files of a process in a cgroup. They never change, so readers need no lock."""

    def __init__(self, process: int, root: Path) -> None:
        self.process = process
        folders = cgroup_folders(root)
        paths = [root / "proc/self/cgroup", *(folder / name for folder in folders for name in QUOTA_FILES)]
        self._files = list(_opened(paths))
        # The last reader closes them: a thread may still read when another one has opened them again.
        weakref.finalize(self, _close, self._files).atexit = False
        self._cgroup = self._contents()[:1]

    def texts(self) -> list[bytes] | None:
        """None after a move to another cgroup."""
        texts = self._contents()
        return texts if texts[:1] == self._cgroup else None

    def _contents(self) -> list[bytes]:
        """Empty if a cgroup does not exist any more."""
        try:
            return [os.pread(file, _MOST_BYTES, 0) for file in self._files]
        except OSError:
            return []


def _opened(paths: Iterable[Path]) -> Iterator[int]:
    for path in paths:
        with contextlib.suppress(OSError):
            yield os.open(path, os.O_RDONLY)


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


Each = TypeVar("Each")


@dataclass(frozen=True)
class CpuTopology:
    """CPUs that are not named here are a core each, and in one node."""

    siblings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """by CPU all CPUs of its core"""
    node: Mapping[int, int] = field(default_factory=dict)
    """by CPU the number of its NUMA node"""

    @classmethod
    def read(cls, root: Path = ROOT) -> CpuTopology:
        """Of this machine, from `/sys` below `root`."""
        devices = root / "sys/devices/system"
        siblings = _cpus_by_folder(devices / "cpu", "cpu", "topology/thread_siblings_list")
        # A made-up `/sys` of a container may list others only. A measurement must own its CPU in any case.
        siblings = {cpu: core for cpu, core in siblings.items() if cpu in core}
        nodes = _cpus_by_folder(devices / "node", "node", "cpulist")
        return cls(siblings, {cpu: number for number, cpus in nodes.items() for cpu in cpus})

    def core_of(self, cpu: int) -> tuple[int, ...]:
        """All CPUs of the core."""
        return self.siblings.get(cpu, (cpu,))

    def cores(self, cpus: Iterable[int]) -> list[list[int]]:
        """These CPUs by core."""
        return _grouped(cpus, self.core_of)

    def nodes(self, cpus: Iterable[int]) -> list[list[int]]:
        """These CPUs by NUMA node."""
        return _grouped(cpus, lambda cpu: self.node.get(cpu, 0))

    def with_siblings(self, cpus: Iterable[int]) -> set[int]:
        """These CPUs, and those that share a core with them."""
        return {sibling for cpu in cpus for sibling in self.core_of(cpu)}

    def choose(self, free: Sequence[int], count: int) -> list[int]:
        """`count` of the free CPUs, or all if there are fewer.

        They are of different cores if there are enough, best of cores that are free as a whole. They are in one node if
        a node has enough such cores.
        """
        cores = self.cores(free)
        whole = [core for core in cores if set(self.core_of(core[0])) <= set(core)]
        choices = [near for among in (whole, cores) for near in (*self._by_node(among), among) if len(near) >= count]
        dealt = itertools.zip_longest(*(choices[0] if choices else cores))
        chosen = set(itertools.islice((cpu for cpus in dealt for cpu in cpus if cpu is not None), count))
        return [cpu for cpu in free if cpu in chosen]

    def _by_node(self, cores: Iterable[list[int]]) -> list[list[list[int]]]:
        return _grouped(cores, lambda core: self.node.get(core[0], 0))


EACH_A_CORE = CpuTopology()


def cpu_list(text: str) -> Iterator[int]:
    """CPUs in the kernel's notation: `0-3,8`. Raises ValueError."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _grouped(each: Iterable[Each], key: Callable[[Each], Hashable]) -> list[list[Each]]:
    groups: dict[Hashable, list[Each]] = {}
    for one in each:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


def _cpus_by_folder(parent: Path, name: str, file: str) -> dict[int, tuple[int, ...]]:
    """The CPUs that `file` lists in each folder with this name and a number."""
    found = {}
    for folder in parent.glob(f"{name}[0-9]*"):
        try:
            found[int(folder.name.removeprefix(name))] = tuple(cpu_list((folder / file).read_text()))
        except (OSError, ValueError):
            continue
    return found
