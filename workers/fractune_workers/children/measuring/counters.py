"""The kernel's counters for some cores and for this process, read before and after a timing on a CPU."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fractune_core.host.cpus import ROOT, Throttling, cgroup_folders, throttlings
from fractune_core.records import Disturbance, TimingPolicy

if TYPE_CHECKING:  # NumPy starts threads, and the sandbox of this process is entered by one
    from fractune_workers.children.tvm_api.processor import Processor


class CpuMeter:
    """Adds up the CPU time and the wall time of all timings of one kernel."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._cpu_s = self._wall_s = 0.0

    def timed(self, timing: Callable[[], list[float]]) -> list[float]:
        """The result of `timing`."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        run_secs = timing()
        self._cpu_s += time.process_time() - cpu_s
        self._wall_s += time.perf_counter() - wall_s
        return run_secs

    def secs_of_one(self, run_secs: Sequence[float], policy: TimingPolicy) -> float | None:
        """CPU time of one call, for the reported ones of `run_secs`; None on a GPU, and where nothing was timed.

        A timing repeats the call without a pause, so the part that its threads were busy is that of the call.
        """
        if self._processor.is_gpu or not self._cpu_s:
            return None
        one_s = statistics.median(run_secs[policy.choosing :])
        # On a single core the run times are CPU times already, and the wall time has the interruptions.
        return one_s if self._processor.is_one_core else one_s * self._cpu_s / self._wall_s


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6)
"""columns of a core in `/proc/stat`: user, nice, system, irq, softirq. Guests are counted as user too"""
_STEAL = 7
_KHZ_PER_MHZ = 1000


@dataclass(frozen=True)
class _Moment:
    at_s: float
    thread_cpu_s: float
    """on a core, of the thread that reads"""

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.perf_counter(), time.thread_time())


@dataclass(frozen=True)
class Counters:
    """One reading. All of it counts up, but for the clock."""

    began: _Moment
    ended: _Moment
    """A reading takes time, and may be disturbed itself. So a difference counts from the beginning of the first reading
    to the end of the second."""
    process_cpu_s: float
    preemptions: int
    waited_s: float
    busy_s: float
    """of the cores together, as `steal_s`"""
    steal_s: float
    throttlings: tuple[Throttling, ...]
    """of the cgroups above this process"""
    clock_mhz: int
    """of the slowest core; 0 = not known"""

    def since(self, before: Counters) -> Disturbance:
        """The counts from `before` until this reading, of the same cores by the same thread."""
        wall_s, process_cpu_s = self.ended.at_s - before.began.at_s, self.process_cpu_s - before.process_cpu_s
        throttled = list(zip(self.throttlings, before.throttlings, strict=False))
        return Disturbance(
            wall_s=wall_s,
            off_core_s=_rise(wall_s, self.ended.thread_cpu_s - before.began.thread_cpu_s),
            steal_s=_rise(self.steal_s, before.steal_s),
            others_s=_rise(self.busy_s - before.busy_s, process_cpu_s),
            waited_s=_rise(self.waited_s, before.waited_s),
            preemptions=self.preemptions - before.preemptions,
            throttles=max((now.count - then.count for now, then in throttled), default=0),
            throttled_s=max((_rise(now.throttled_s, then.throttled_s) for now, then in throttled), default=0.0),
            clock_mhz=min(self.clock_mhz, before.clock_mhz),
        )


class KernelCounters:
    """Reads the counters of some cores and of this process.

    `root` is the folder above `/proc` and `/sys`. A missing counter is 0.
    """

    def __init__(self, cores: Sequence[int], root: Path = ROOT) -> None:
        self._cores = cores
        self._root = root
        self._cgroups = list(cgroup_folders(root))  # searched once: the search is most of a reading's time

    def read(self) -> Counters:
        began = _Moment.now()
        used = resource.getrusage(resource.RUSAGE_SELF)
        busy_ticks, steal_ticks = _ticks(self._cores, self._root)
        return Counters(
            process_cpu_s=used.ru_utime + used.ru_stime,
            preemptions=used.ru_nivcsw,
            waited_s=sum(_waits_s(self._root)),
            busy_s=busy_ticks / _TICKS_PER_S,
            steal_s=steal_ticks / _TICKS_PER_S,
            throttlings=tuple(throttlings(self._cgroups)),
            clock_mhz=min((_clock_mhz(core, self._root) for core in self._cores), default=0),
            began=began,
            ended=_Moment.now(),  # the last that is read
        )


def _ticks(cores: Sequence[int], root: Path) -> tuple[int, int]:
    """Busy and stolen ticks of the cores together."""
    wanted = {f"cpu{core}" for core in cores}
    busy = steal = 0
    for line in _lines(root / "proc/stat"):
        name, *columns = line.split()
        if not name.startswith("cpu"):
            break  # the cores come first
        if name in wanted:
            busy += sum(int(columns[place]) for place in _BUSY)
            steal += int(columns[_STEAL])
    return busy, steal


def _waits_s(root: Path) -> Iterator[float]:
    """Seconds that each thread of this process was ready and did not run: the second number of its `schedstat`."""
    try:
        tasks = list((root / "proc/self/task").iterdir())
    except OSError:
        return
    for task in tasks:
        for line in _lines(task / "schedstat"):  # no line for a thread that has just ended
            yield int(line.split()[1]) * 1e-9


def _clock_mhz(core: int, root: Path) -> int:
    lines = _lines(root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
    return int(lines[0]) // _KHZ_PER_MHZ if lines and lines[0].isdigit() else 0


def _lines(path: Path) -> list[str]:
    """None where the kernel does not show the file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _rise(now: float, before: float) -> float:
    """Clocks of different steps may seem to go backwards by one of them."""
    return max(0.0, now - before)
