"""CPU limits as Kubernetes and ECS give them: their text (`500m..1500m@2/10ms`), and what a worker proved of one."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
