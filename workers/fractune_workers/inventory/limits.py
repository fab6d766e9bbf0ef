"""The CPU limit of this process, and whether fractune can hold a process to another one here."""

from __future__ import annotations

from dataclasses import dataclass

from fractune_core.codec.plain_json import JsonObject
from fractune_core.cpu_limits import MILLICORES, LimitSize
from fractune_core.host.cgroups import limiting_cgroup, throttlings
from fractune_workers.confinement.limit_cgroups import LimitCgroups
from fractune_workers.confinement.systemd_scope import SystemdScope

CGROUP, SCOPE = "cgroup", "systemd-run"
_ANY = LimitSize(MILLICORES)


@dataclass(frozen=True)
class LimitsHere(JsonObject):
    """What holds now, and what can be made."""

    cgroup: str = ""
    """the folder of the one that limits this process most, its own or one above; empty without a limit"""
    quota_m: int = 0
    """millicores that it allows, rounded up"""
    period_us: int = 0
    throttled_periods: int | None = None
    """in which this limit stopped its processes since it was made; None where the kernel does not count them"""
    throttled_s: float | None = None
    """for how long, of all CPUs together"""
    made_by: str = ""
    """`cgroup` or `systemd-run`: what holds a process to a limit; empty where neither can"""
    refusal: str = ""
    """why neither can"""


def limits_here(cgroups: LimitCgroups | None = None) -> LimitsHere:
    """Read from `/proc` and `/sys`. Where no cgroup can be made, a scope of systemd is tried for a moment."""
    cgroups = cgroups or LimitCgroups()
    made_by, refusal = _way(cgroups)
    limiting = limiting_cgroup(cgroups.root)
    if limiting is None:
        return LimitsHere(made_by=made_by, refusal=refusal)
    folder, quota = limiting
    stops = next(iter(throttlings([folder])), None)
    return LimitsHere(
        cgroup=str(folder),
        quota_m=quota.millicores,
        period_us=quota.period_us,
        throttled_periods=None if stops is None else stops.count,
        throttled_s=None if stops is None else stops.throttled_s,
        made_by=made_by,
        refusal=refusal,
    )


def _way(cgroups: LimitCgroups) -> tuple[str, str]:
    """How a limit is made here, or why none can be."""
    lacks = cgroups.lacks()
    if not lacks:
        return CGROUP, ""
    refuses = SystemdScope(_ANY).lacks()
    return ("", f"{lacks}, and {refuses}") if refuses else (SCOPE, "")
