"""Tuning records: one measurement of one candidate under one share, with everything that affects the number; and
the costs of work in the fleet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from fractune_core.codec.plain_json import In, JsonObject
from fractune_core.names import Collection, digest_of
from fractune_core.operators import implementation_of
from fractune_core.shares import Device, GrantedShare


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


UNTUNED = ""
"""The trace of the untuned default: no schedule instruction at all."""


class Status(StrEnum):
    """How a measurement ended. Everything but OK is data too: never retried as if new, never published."""

    OK = "ok"
    BUILD_FAILED = "build_failed"
    BUILD_TIMEOUT = "build_timeout"
    RUN_FAILED = "run_failed"
    RUN_TIMEOUT = "run_timeout"
    CRASHED = "crashed"
    WRONG_OUTPUT = "wrong_output"

    @property
    def built(self) -> bool:
        """False when no machine code came out, which is so for every share."""
        return self not in (Status.BUILD_FAILED, Status.BUILD_TIMEOUT)


class Kind(StrEnum):
    """Why a measurement was made."""

    TRIAL = "trial"
    """one candidate of a search, beside others"""
    VALIDATION = "validation"
    """a finalist checked for right output and timed alone, interleaved with the untuned default; may be published"""


WARM, COLD = "warm", "cold"
"""State of a GPU's second-level cache when a call begins: as the last call left it, or without useful data"""


@dataclass(frozen=True)
class TimingPolicy(JsonObject):
    """Numbers of repeats and warm-ups, and the cache's state. A time budget never cuts `repeats`."""

    name: str
    warmups: int
    """repeats timed and dropped"""
    repeats: int
    """repeats kept: at least 3, but 1 for a slow candidate far behind, and for an untuned default far behind"""
    min_repeat_ms: float
    """one repeat calls the kernel until this long has passed"""
    cache: str = WARM
    """WARM or COLD"""
    choosing: int = 0
    """how many of the repeats kept, the first of them, say which schedule is used; only the others are reported. 0 =
    they are not divided: in trials, and for candidates that cannot win"""

    def undivided(self) -> TimingPolicy:
        """As many repeats as this one reports, and none to choose by: for a timing that chooses nothing."""
        return replace(self, repeats=self.repeats - self.choosing, choosing=0)


FIRST_POLICY = TimingPolicy("first", warmups=1, repeats=3, min_repeat_ms=1.0)
"""every trial's first timing, and the only one of a trial that is far behind or has no competitor"""
TRIAL_POLICY = TimingPolicy("trial", warmups=1, repeats=3, min_repeat_ms=10.0)
"""the timing of a contender"""
VALIDATION_POLICY = TimingPolicy("validation", warmups=1, repeats=14, min_repeat_ms=10.0, choosing=5)
"""the interleaved timing of the finalists: five repeats choose, the nine after them are reported"""

_COLD_REPEATS = {FIRST_POLICY.name: (5, 0), TRIAL_POLICY.name: (20, 0), VALIDATION_POLICY.name: (75, 25)}
"""all that are kept, and those of them that choose"""


def with_cache(policy: TimingPolicy, cache: str) -> TimingPolicy:
    """One of the three policies, over a warm or a cold cache. A cold repeat is a single call, so there are more."""
    if cache == WARM:
        return policy
    repeats, choosing = _COLD_REPEATS[policy.name]
    return replace(policy, cache=cache, min_repeat_ms=0.0, repeats=repeats, choosing=choosing)


def candidate_id(workload_hash: str, target_key: str, trace: str) -> str:
    """32 hex digits that name a candidate everywhere: the same workload, target and trace give the same name."""
    return digest_of(workload_hash, target_key, trace)


def record_id(round_id: str, candidate: str, share: str) -> str:
    """32 hex digits that name one measurement, so that a result delivered twice is recorded once."""
    return digest_of(round_id, candidate, share)


@dataclass(frozen=True)
class ArtifactItem(JsonObject):
    """A candidate, and how its build ended. A failed build has no artifact: a measurer only writes its record."""

    candidate: str
    trace: str
    status: Status
    """OK, or how the build failed"""
    cause: str = ""
    build_secs: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    """what made the code, beside TVM, for the record: `compiler`"""


@dataclass(frozen=True)
class TuningRecord(JsonObject):
    """One measurement. Times in seconds; `measured_at` in seconds since 1970, UTC."""

    record_id: Annotated[str, In("name", Collection.RECORDS)]
    kind: Kind
    candidate_id: str
    workload_hash: str
    operator: str
    """name of the operator in the model it was measured for: a label"""
    target: str
    """TVM's target as JSON"""
    target_key: str
    """the target without what a trace already holds (`num-cores`)"""
    trace: str
    """MetaSchedule's trace as JSON, of another implementation after its name and a colon; or UNTUNED"""
    device: Device
    share: Annotated[str, In("granted.share")]
    granted: GrantedShare
    status: Status
    cause: str
    """one line; empty when OK"""
    run_secs: tuple[float, ...]
    """all repeats that were kept, those that choose first; empty unless OK. At one core of a CPU what the thread spent
    there"""
    policy: TimingPolicy
    anchor_ratio: float
    """time of the anchor kernel beside this measurement, over its first time in that worker; 0 = not timed"""
    neighbours: int
    """other measurements active on the device at the time"""
    job: str
    worker: str
    measured_at: Annotated[float, In("measure_time")]
    build_secs: float = 0.0
    max_error: float | None = None
    """largest difference to the untuned output, relative to that output's largest value; None = not compared"""
    clock_mhz: int = 0
    """SM clock, the lower of before and after; 0 = not known"""
    throttled_ns: dict[str, int] = field(default_factory=dict)
    """what held the clock down meanwhile, and for how long in nanoseconds: `sw_power_cap`, `sw_thermal`, `hw_thermal`,
    `hw_power_brake`; empty when nothing did, or it is not known"""
    versions: dict[str, str] = field(default_factory=dict)
    """tvm, tvm-ffi, llvm, driver, cuda: whatever applies"""
    disturbance: Disturbance | None = None
    """what else went on meanwhile: of a trial beside this timing, of a validation beside that of all finalists. None =
    not known: on a GPU, for a failure"""
    attempts: int = 0
    """how often its batch was measured, this time included: those before were void. 0 = not known"""
    namespace: str = ""
    """that its job shared it in (`JobSpec.namespace`); empty = the server's"""
    cpu_secs: float | None = None
    """CPU time of all threads in one call, in the reported repeats; None = not known: on a GPU, for a failure"""

    # Not cached: with one more value Python would give each record a dictionary of its own, larger than the record.
    @property
    def median_s(self) -> float:
        """Median run time in seconds, of the repeats that are reported; infinite for a failure."""
        return _median(self.reported_secs)

    @property
    def choosing_s(self) -> float:
        """Median of the repeats for selection. It compares schedules and is not reported: the fastest of many looks
        faster than it is. Where the repeats are not divided, `median_s`.
        """
        return _median(self.run_secs[: self.policy.choosing]) if self.policy.choosing else self.median_s

    @property
    def reported_secs(self) -> tuple[float, ...]:
        """The repeats that chose nothing; all where they are not divided."""
        return self.run_secs[self.policy.choosing :]

    @property
    def implementation(self) -> str:
        """The name of the implementation that the candidate is of; empty for the direct one."""
        return implementation_of(self.trace)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the repeats that are reported; 0 for a failure."""
        if not self.reported_secs:
            return 0.0
        return (max(self.reported_secs) - min(self.reported_secs)) / self.median_s


def _median(secs: Sequence[float]) -> float:
    """Infinite where there is none."""
    return statistics.median(secs) if secs else math.inf


def joint_time_s(secs: Iterable[float]) -> float:
    """The geometric mean of times in seconds, so that every share has the same weight; 0 when one time is a failure (0
    or infinite). Raises StatisticsError for no times.
    """
    times = list(secs)
    return statistics.geometric_mean(times) if all(0 < time < math.inf for time in times) else 0.0


MEASURING = ("measure", "time_model")
"""work that holds a share; all other work takes CPU time"""


@dataclass(frozen=True)
class WorkCost:
    """Cost of one piece of work, as its worker reports it."""

    work_id: str
    job: str
    """the job that requested it first, where others wait for it too"""
    task: str
    """kind of work: `Work.task`"""
    share: str
    """share of the measurement; empty for work that measures nothing"""
    worked_s: float
    """from its beginning to its end, without waiting for cores or a GPU"""
    cpu_s: float
    """CPU time of the worker and its children during the work"""
    ended_at: float
    """seconds since 1970, by the worker's clock"""


@dataclass(frozen=True)
class Spending:
    """Total cost of one kind of work."""

    task: str
    share: str
    pieces: int
    worked_s: float
    cpu_s: float
