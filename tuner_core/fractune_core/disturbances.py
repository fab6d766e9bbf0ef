"""Disturbances of a timing on a CPU: counts of the kernel for its cores and its threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fractune_core.codec.plain_json import JsonObject


@dataclass(frozen=True)
class Disturbance(JsonObject):
    """Seconds and counts between two readings. Absent causes are 0, and so are causes that cannot be counted here."""

    wall_s: float
    """between the two readings"""
    off_core_s: float
    """the timing thread, which never sleeps, was not on a core: stolen, waiting or throttled. Exact, but only kernels
    built with CONFIG_PARAVIRT_TIME_ACCOUNTING tell stolen time from the thread's own"""
    steal_s: float
    """the hypervisor ran something else on the cores; sum over the cores, in steps of 10 ms"""
    others_s: float
    """the cores were busy with other processes and interrupts; in steps of 10 ms"""
    waited_s: float
    """runnable threads of the process waited, summed over threads: another task had the core, or a quota was used up"""
    preemptions: int
    """times that a thread of the process lost its core without giving it up"""
    throttles: int
    """periods with a used-up quota, of the cgroup above the process with the most"""
    throttled_s: float
    """time without CPU for this reason, of the cgroup with the most"""
    clock_mhz: int = 0
    """of the slowest core, the lower of both readings; 0 = not known, as on most virtual machines"""

    @property
    def lost(self) -> float:
        """The part of the time in which some thread of the process was kept from its core, at most 1."""
        return min(1.0, max(self.off_core_s, self.steal_s + self.waited_s) / self.wall_s) if self.wall_s else 0.0

    @property
    def others_cores(self) -> float:
        """Cores that others had meanwhile, on average."""
        return (self.steal_s + self.others_s) / self.wall_s if self.wall_s else 0.0


def total(parts: Iterable[Disturbance | None]) -> Disturbance | None:
    """The sum over consecutive measurements with a disturbance; None when none has one."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return Disturbance(
        wall_s=sum(part.wall_s for part in known),
        off_core_s=sum(part.off_core_s for part in known),
        steal_s=sum(part.steal_s for part in known),
        others_s=sum(part.others_s for part in known),
        waited_s=sum(part.waited_s for part in known),
        preemptions=sum(part.preemptions for part in known),
        throttles=sum(part.throttles for part in known),
        throttled_s=sum(part.throttled_s for part in known),
        clock_mhz=min(part.clock_mhz for part in known),
    )
