"""What else went on while something was timed on a CPU: what the kernel counted for its cores and its threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fractune_core.fields import known_fields, own_fields


@dataclass(frozen=True)
class Disturbance:
    """Seconds and counts between a reading before and one after. Absent causes are 0; so are those not counted here."""

    wall_s: float
    """from the one reading to the other"""
    off_core_s: float
    """the thread that timed, which never sleeps, was not on a core: stolen, waiting or throttled. Exact, but the
    kernel tells stolen time from its own only where it is built to (CONFIG_PARAVIRT_TIME_ACCOUNTING)"""
    steal_s: float
    """the hypervisor ran something else on the cores, of all of them together; counted in steps of 10 ms"""
    others_s: float
    """the cores were busy with other processes and with interrupts; counted in steps of 10 ms"""
    waited_s: float
    """the process's threads could run and did not, of all of them together: another task had the core, or a quota was
    used up"""
    preemptions: int
    """how often a thread of the process lost its core without giving it up"""
    throttles: int
    """periods in which a cgroup above the process used up its quota, of the cgroup with the most"""
    throttled_s: float
    """the time that it was stopped for that, of the cgroup with the most"""
    clock_mhz: int = 0
    """of the slowest core, the lower of before and after; 0 = not known, as on most virtual machines"""

    @property
    def lost(self) -> float:
        """The part of the time in which some thread of the process was kept from its core, at most 1."""
        return min(1.0, max(self.off_core_s, self.steal_s + self.waited_s) / self.wall_s) if self.wall_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return own_fields(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Disturbance:
        return cls(**known_fields(cls, data))


def disturbance_of(told: Mapping[str, Any]) -> Disturbance | None:
    """What something that was read from JSON says of it; None where it says nothing."""
    found = told.get("disturbance")
    return None if found is None else Disturbance.from_json(found)


def total(parts: Iterable[Disturbance | None]) -> Disturbance | None:
    """Of measurements that followed each other, those that have one; None when none has."""
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
