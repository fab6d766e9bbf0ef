"""CPU limits as Kubernetes and ECS give them: their text (`500m..1500m@2/10ms`), what a worker proved of one, and the
times of a model without one.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, replace
from functools import cached_property

from fractune_core.codec.plain_json import JsonObject
from fractune_core.errors import BadRequest

MILLICORES = 1000
"""of one core"""
SIZE_FORM = r"[0-9.]+m.*|[0-9]*\.[0-9]+"
"""Every size that is meant as a limit, right or wrong, so that `LimitSize.parse` can report the mistake."""
USUAL_PERIOD_MS = 100
_PERIODS_MS = range(1, 1001)
_LEAST_QUOTA_MS = 1
_NUMBER = r"([1-9][0-9]{0,6})"
_FORM = re.compile(rf"(?:{_NUMBER}m\.\.)?{_NUMBER}m(?:@{_NUMBER})?(?:/{_NUMBER}ms)?")


@dataclass(frozen=True)
class LimitSize:
    """The size of a `cpu:` share that is a limit."""

    limit_m: int
    """millicores that the share may use at most, averaged over a period"""
    request_m: int = 0
    """millicores by which the share is weighted against others when CPUs are scarce; 0 = the kernel's usual weight"""
    span: int = 0
    """CPUs that the share may run on; 0 = all that its worker may use"""
    period_ms: int = USUAL_PERIOD_MS
    """the time after which a used-up limit is renewed"""

    def __str__(self) -> str:
        request = f"{self.request_m}m.." if self.request_m else ""
        span = f"@{self.span}" if self.span else ""
        period = "" if self.period_ms == USUAL_PERIOD_MS else f"/{self.period_ms}ms"
        return f"{request}{self.limit_m}m{span}{period}"

    @classmethod
    def parse(cls, text: str) -> LimitSize:
        """Raises BadRequest for a text that is not a limit, or that could be written more simply."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise BadRequest(_misfit(text))
        request, limit, span, period = found.groups()
        size = cls(int(limit), int(request or 0), int(span or 0), int(period or USUAL_PERIOD_MS))
        size._check()
        if str(size) != text:
            raise BadRequest(f"{USUAL_PERIOD_MS}ms is the usual period; write cpu:{size}")
        return size

    @property
    def cores(self) -> int:
        """The number of CPUs that the limit needs: its span, or enough CPUs to use it up."""
        return self.span or -(-self.limit_m // MILLICORES)

    @property
    def thread_counts(self) -> list[int]:
        """The numbers of threads that a model may have under the limit, and of the cores at which it is tuned."""
        return powers_of_two(self.cores)

    @property
    def period_us(self) -> int:
        return self.period_ms * 1000

    @property
    def quota_us(self) -> int:
        """CPU time in a period."""
        return self.limit_m * self.period_ms

    def _check(self) -> None:
        if self.request_m > self.limit_m:
            raise BadRequest(
                f"the request of {self.request_m}m is above the limit of {self.limit_m}m; "
                f"write cpu:{self.limit_m}m..{self.request_m}m"
            )
        if self.period_ms not in _PERIODS_MS:
            raise BadRequest(f"a period of {self.period_ms}ms is too long; write 1ms to 1000ms, such as /10ms")
        if self.quota_us < _LEAST_QUOTA_MS * 1000:
            least_m = -(-_LEAST_QUOTA_MS * MILLICORES // self.period_ms)
            raise BadRequest(
                f"{self.limit_m}m of {self.period_ms}ms is less than the kernel's least quota of {_LEAST_QUOTA_MS} ms; "
                f"write {least_m}m or more"
            )
        if self.span and self.limit_m > self.span * MILLICORES:
            enough = -(-self.limit_m // MILLICORES)
            raise BadRequest(
                f"{self.limit_m}m cannot be used on {self.span} CPU{'' if self.span == 1 else 's'}; write @{enough}"
            )


def powers_of_two(cores: int) -> list[int]:
    """1, 2, 4, ... and `cores` itself."""
    return sorted({*(1 << exponent for exponent in range(cores.bit_length())), cores})


def _misfit(text: str) -> str:
    if re.search(r"(?<![0-9])0+m(?!s)", text):
        return "0m allows no CPU time; write a limit above 0, such as cpu:500m"
    if re.fullmatch(r"[0-9]{0,4}\.[0-9]{1,6}", text):
        return f"a limit is written in thousandths of a core: write cpu:{max(1, round(float(text) * MILLICORES))}m"
    if period := re.fullmatch(r"[^/]*/([^/]*)", text):
        return f"'{period[1]}' is not a period; write whole milliseconds from 1ms to 1000ms, such as cpu:1500m/10ms"
    return (
        f"'{text}' is not a CPU limit; write cpu:1500m, with a request cpu:500m..1500m, and behind it the number of "
        "CPUs (@2) and the period (/10ms)"
    )


@dataclass(frozen=True)
class GrantedLimit(JsonObject):
    """A CPU limit as a worker proved it from inside."""

    quota_m: int
    """millicores: the least limit of the process's cgroup and all cgroups above it"""
    request_m: int
    """millicores of its weight, as requested; 0 = the weight was left as it was"""
    span: int
    """CPUs that every thread may run on"""
    period_us: int
    """of the limit"""
    burst_us: int
    """CPU time that may be saved up in idle periods and used on top of the limit"""
    burned_m: int
    """millicores that busy processes got when they tried to use more than the limit"""

    @property
    def key(self) -> str:
        """What of the limit affects speed, beside its size."""
        return f"request{self.request_m}-span{self.span}-period{self.period_us}us-burst{self.burst_us}us"


PERIOD_US = 1000 * USUAL_PERIOD_MS

SLICE_S = 0.005
"""CPU time that a core takes from the common budget at once (`sched_cfs_bandwidth_slice_us`)"""
TICK_S = 0.004
"""from one look of the kernel at a running thread's budget to the next (HZ=250)"""
POOL_COST_S = 50e-6
"""The part of a call with a pool that no measurement of an operator contains: the hand-over to the pool's first thread,
which wakes the others, and back. 30 to 80 us on two kinds of machines with two cores, more where they are busy."""
SPIN_S = 0.5e-3
"""in which a thread of the pool spins in wait for more work before it sleeps; measured on an AMD EPYC"""
SPIN_COUNT, SPIN_YIELDS = "TVM_THREAD_POOL_SPIN_COUNT", "1000"
"""Spins of a thread of TVM's pool for more work before it sleeps: some 1 ms on a free core, longer than between two
operators of a model. TVM's own number is 300 times as long, on cores that others need, or the next model"""
_SLICES = 5
"""in a period, for each of several threads; with fewer, measured latencies are far above the predicted ones"""


@dataclass(frozen=True)
class CpuLimit:
    """A CFS quota, as of a Kubernetes CPU limit: the CPU time of all threads of a group together in each period.

    Raises BadRequest for values that the kernel refuses.
    """

    quota_m: int
    """millicores: 1500 for `1500m`"""
    period_us: int = PERIOD_US
    burst_us: int = 0
    """unused CPU time that is kept for later periods, at most"""
    slice_s: float = SLICE_S
    tick_s: float = TICK_S

    def __post_init__(self) -> None:
        if not 1_000 <= self.period_us <= 1_000_000:
            raise BadRequest(f"a period of {self.period_us} us; take 1000 to 1000000, usually {PERIOD_US}")
        if self.quota_us < 1_000:
            least_m = -(-1_000_000 // self.period_us)
            raise BadRequest(f"a limit of {self.quota_m}m is less than 1 ms in a period; take at least {least_m}m")
        if not 0 <= self.burst_us <= self.quota_us:
            raise BadRequest(f"a burst of {self.burst_us} us; take 0 to {self.quota_us} us, the quota of a period")

    @property
    def quota_us(self) -> int:
        """CPU time of a period"""
        return self.quota_m * self.period_us // MILLICORES


@dataclass(frozen=True)
class Service:
    """A model with a number of threads, each on cores of its own, measured without a limit.

    Raises BadRequest for times that are missing or not positive.
    """

    threads: int
    wall_s: tuple[float, ...]
    """of inferences in a loop; the simulation draws from these times at random"""
    cpu_s: float
    """of all threads together, mean of the same inferences"""
    paced_wall_s: tuple[float, ...] = ()
    """of inferences that follow a pause; empty: as in a loop"""
    spin_s: float = 0.0
    """after an inference, while all threads but the first keep their cores busy in wait for the next"""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise BadRequest(f"a model with {self.threads} threads; it needs at least 1")
        if not self.wall_s or min(*self.wall_s, *self.paced_wall_s, self.cpu_s) <= 0 or self.spin_s < 0:
            raise BadRequest(f"times with {threads_text(self.threads)} are missing or not positive; measure them again")

    def slower(self, part: float) -> Service:
        """The same with inferences that take longer by this fraction."""
        longer = 1 + part
        wall_s, paced_wall_s = (tuple(longer * secs for secs in times) for times in (self.wall_s, self.paced_wall_s))
        return replace(self, wall_s=wall_s, cpu_s=longer * self.cpu_s, paced_wall_s=paced_wall_s)

    @cached_property
    def mean_s(self) -> float:
        """of an inference in a loop"""
        return statistics.fmean(self.wall_s)

    @cached_property
    def cold_s(self) -> float:
        """by which an inference is longer after a pause"""
        return max(0.0, statistics.fmean(self.paced_wall_s or self.wall_s) - self.mean_s)

    @cached_property
    def cores(self) -> float:
        """busy during an inference"""
        return min(self.cpu_s / self.mean_s, float(self.threads))


def service_of_time(threads: int, secs: float) -> Service:
    """From the time of an inference alone: at most all threads are busy all the time. Several cost that of their pool
    besides.
    """
    pool_s = POOL_COST_S if threads > 1 else 0.0
    return Service(threads, (secs + pool_s,), threads * secs, spin_s=SPIN_S)


def capacity_per_s(service: Service, limit: CpuLimit, replicas: int = 1) -> float:
    """Inferences a second that neither the limit nor the number of replicas allows to exceed."""
    return min(limit.quota_m / MILLICORES / service.cpu_s, replicas / service.mean_s)


def loop_per_s(service: Service, limit: CpuLimit, replicas: int = 1) -> float:
    """Inferences a second of replicas that each run in a loop, by a formula in place of a simulation. A stop costs each
    thread of a replica but the first half a slice and half a tick of the budget (`analysis/limit_prediction.py`).
    """
    lost_s = (service.threads - 1) * (limit.slice_s + limit.tick_s) / 2
    cores = 1e6 * (limit.quota_us / 1e6 - lost_s) / limit.period_us
    return min(replicas / service.mean_s, cores / service.cpu_s)


def least_quota_m(threads: int, period_us: int, slice_s: float = SLICE_S) -> int:
    """The smallest limit in thousandths of a core for which predictions with so many threads, of all replicas, hold."""
    least_us = 1_000 if threads == 1 else round(1e6 * _SLICES * threads * slice_s)
    return -(-MILLICORES * least_us // period_us)


def threads_text(threads: int) -> str:
    return f"{threads} thread{'' if threads == 1 else 's'}"
